"""What went wrong, reduced to what may be kept, and the dead letters that wait for a person."""

import hashlib
import re
import traceback as tracebacks
from dataclasses import dataclass, replace
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models.functions import Now

from operations import effects, metrics
from operations.models import Category, DeadLetter, Operation, Reason, Resolution
from operations.publish import ask_for_report

READ_LENGTH = 500_000  # characters of it that are looked at: a whole body, with all its escapes, is less
MESSAGE_LENGTH = 1_000  # characters of an error's text that are kept
TRACEBACK_LENGTH = 20_000  # characters, the end of it: the raising frame is there
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
NUMBERS = re.compile(r"\b[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]{4,})*\b|\d+")


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An error without its exception: no live objects, no NUL, no unbounded text."""

    category: str
    message: str
    error_class: str = ""
    traceback: str = ""
    frame: str = ""  # the first of our own lines in the traceback, as path:function
    dependency: str = ""
    retry_after_seconds: float | None = None
    lock_lost: bool = False  # the run had lost its resource's lock before: no cause, but told beside it
    shuts: bool = False  # its dependency refuses us, whatever the operation: nothing more is to be sent there
    unresolved: bool = False  # an effect of the run may have been sent: it is looked up before all else
    parked: bool = False  # no look-up can help any more; a person has to

    def shortened(self) -> "Failure":
        """Give it with texts as long as they are kept."""
        message, traceback = self.message[:MESSAGE_LENGTH], self.traceback[-TRACEBACK_LENGTH:]
        return replace(self, message=message, traceback=traceback)

    def as_json(self) -> dict[str, Any]:
        """Give the problem object that the API shows: {category, class, message, dependency, lock_lost?}."""
        beside = {"lock_lost": True} if self.lock_lost else {}
        return {
            **beside,
            "category": self.category,
            "class": self.error_class,
            "message": self.message,
            "dependency": self.dependency,
        }


def from_exception(error: BaseException, *, category: str, dependency: str = "") -> Failure:
    """Reduce an exception, one whose text cannot be had included. Its texts are still to be scrubbed and cut.

    In that order: of a secret that stands where a text is cut, the beginning would be left.
    """
    return Failure(
        category=category,
        message=_text(error),
        error_class=type(error).__qualname__[:200],
        traceback=_clean("".join(tracebacks.format_tb(error.__traceback__)))[-READ_LENGTH:],
        frame=_own_frame(error),
        dependency=dependency,
        retry_after_seconds=getattr(error, "retry_after_seconds", None),
        shuts=getattr(error, "shuts", False),
        parked=getattr(error, "parked", False),
    )


def bury(operation: Operation, failure: Failure) -> DeadLetter:
    """Write the dead letter of an operation that has just failed; must be in the transaction of that move."""
    if operation.replays:
        resolve(operation, Resolution.REPLAYED_FAILED)
    buried = DeadLetter.objects.create(
        operation=operation,
        resource=operation.resource,
        resource_seq=operation.resource_seq,
        job_type=operation.job_type,
        reason=operation.reason,
        category=failure.category,
        error_class=failure.error_class,
        error_message=failure.message,
        signature=signature(operation.job_type, failure),
        dependency=failure.dependency,
        lock_lost=failure.lock_lost,
        certainty=effects.worst_certainty(operation.id) if operation.step else "",
        idempotency_key=operation.idempotency_key,
        attempts=operation.attempt,
        runs=operation.runs,
        first_processed_at=operation.first_started_at,
        last_processed_at=operation.started_at,
        correlation_id=operation.correlation_id,
        schema_version=operation.schema_version,
        traceback=failure.traceback,
        expected=operation.reason == Reason.BUSINESS_REJECTED
        or failure.category == Category.BUSINESS_REJECTED,
    )
    # See Note [Robust callbacks have names].
    transaction.on_commit(lambda: ask_for_report(buried.id), robust=True)
    return buried


def resolve(operation: Operation, resolution: Resolution) -> None:
    """Close the dead letter that a replay left open; must be in the transaction of the move that decides."""
    replaying = DeadLetter.objects.filter(operation=operation, resolution=Resolution.REPLAYING)
    if replaying.update(resolution=resolution, resolved_at=Now()):
        metrics.DEAD_LETTERS_OUT.labels(operation.job_type, resolution).inc()


def signature(job_type: str, failure: Failure) -> str:
    """Name the kind of failure: 16 hexadecimal digits, equal where only numbers, ids and quotes differ."""
    parts = (
        failure.error_class,
        in_general(failure.message),
        failure.frame,
        failure.dependency,
        job_type,
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def in_general(message: str) -> str:
    """Give what the messages of one kind share, without numbers, ids and quotes: fit for a list to show."""
    return NUMBERS.sub("#", QUOTED.sub("'…'", message))


def _text(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as broken:
        text = f"(its text could not be had: {type(broken).__name__})"
    return _clean(text[:READ_LENGTH])


def _clean(text: str) -> str:
    """Replace what PostgreSQL does not store: NUL and halves of surrogate pairs."""
    return text.replace("\0", "�").encode("utf-8", "replace").decode()


def _own_frame(error: BaseException) -> str:
    home = f"{settings.BASE_DIR}/"
    for frame in reversed(tracebacks.extract_tb(error.__traceback__)):
        if frame.filename.startswith(home) and "/.venv/" not in frame.filename:
            return f"{frame.filename.removeprefix(home)}:{frame.name}"
    return ""
