"""What a person may do with a dead letter: look what would happen, send it round again, or discard it.

Each act is a move and an audit entry in one transaction; what can't be done is refused with a sentence.
"""

import logging
from dataclasses import dataclass

from django.db import transaction
from django.db.models.functions import Now

from operations import effects, jobs, lifecycle, metrics, order
from operations.crashpoints import crashpoint
from operations.models import AuditEntry, Certainty, DeadLetter, Effect, Operation, Reason, Resolution, Status
from operations.publish import publish

log = logging.getLogger(__name__)

NOT_BY_REPEATING = {Reason.INVALID_INPUT, Reason.BUSINESS_REJECTED, Reason.PERMISSION, Reason.NOT_FOUND}


class Refused(Exception):
    """The act is not possible for this dead letter; the text says why."""


@dataclass(frozen=True)
class Preview:
    """What a replay would do."""

    eligible: bool
    why: str


def preview(letter: DeadLetter) -> Preview:
    """Say whether a replay is possible and whether it is likely to help."""
    if (closed := _closed(letter)) is not None:
        return closed
    if order.overtaken_by(letter.operation) is not None:
        return Preview(eligible=False, why=_why_not(letter.operation))
    try:
        attempts = jobs.get(letter.job_type).retry.attempts
    except jobs.NoSuchJob as unknown:
        return Preview(eligible=False, why=str(unknown))
    if letter.operation.cancel_requested_at is not None:
        return Preview(
            eligible=True, why="its owner has cancelled it meanwhile: a replay would do it all the same"
        )
    if letter.reason in NOT_BY_REPEATING:
        return Preview(
            eligible=True, why=f"repeating alone does not mend {letter.reason}: change the cause first"
        )
    return Preview(eligible=True, why=f"runs again under the same id and key, with {attempts} fresh attempts")


def preview_discard(letter: DeadLetter) -> Preview:
    """Say whether a discard is possible and what it ends."""
    if (closed := _closed(letter)) is not None:
        return closed
    left = _left(letter)
    if left:
        return Preview(eligible=False, why=left)
    return Preview(eligible=True, why="ends for good, undone: it can never be replayed")


def replay(
    letter_id: int, *, actor: str, reason: str, request_id: str = "", because: str = Reason.REPLAYED
) -> Operation:
    """Send the operation of a dead letter round again. Opens a transaction; publishes after it.

    `because` is REPLAYED for a person's wish, RECONCILED when what became of its effect is known since.

    Raises:
        Refused: there is no reason, the letter is resolved, or another act was first.
    """
    with transaction.atomic():
        letter = _take(letter_id, reason, Resolution.REPLAYING)
        job = _job(letter.job_type)
        if letter.operation.resource_seq is not None:
            order.stand_still(letter.operation.resource)  # See Note [The line stands still]
        operation = lifecycle.replay(
            letter.operation_id,
            max_attempts=job.retry.attempts,
            deadline=job.deadline,
            actor=actor,
            why=reason,
            reason=because,
        )
        if operation is None:
            raise Refused(_why_not(letter.operation))
        Effect.objects.filter(operation=operation).update(found_at=None)
        action = "replay" if because == Reason.REPLAYED else "reconcile"
        _audit(letter, operation, action=action, actor=actor, reason=reason, request_id=request_id)
        Operation.objects.filter(id=operation.id).update(published_at=Now())
        # See Note [Robust callbacks have names].
        crashpoint("replay.before_commit")
        transaction.on_commit(lambda: publish(operation), robust=True)
    log.info("operation.replayed", extra={**operation.log_fields(), "actor": actor})
    return operation


def discard(letter_id: int, *, actor: str, reason: str, request_id: str = "") -> Operation:
    """End the operation of a dead letter for good, undone. Opens a transaction.

    Raises:
        Refused: there is no reason, the letter is resolved, or another act was first.
    """
    with transaction.atomic():
        letter = _take(letter_id, reason, Resolution.DISCARDED)
        compensates = _compensates(letter.job_type)
        operation = lifecycle.discard(letter.operation_id, actor=actor, why=reason, compensates=compensates)
        if operation is None:
            raise Refused(_why_no_discard(letter))
        _audit(letter, operation, action="discard", actor=actor, reason=reason, request_id=request_id)
    metrics.DEAD_LETTERS_OUT.labels(operation.job_type, Resolution.DISCARDED).inc()
    metrics.COMPLETED.labels(operation.job_type, operation.status, operation.reason, letter.category).inc()
    log.info("operation.discarded", extra={**operation.log_fields(), "actor": actor})
    return operation


def _closed(letter: DeadLetter) -> Preview | None:
    if letter.resolution != Resolution.WAITING:
        return Preview(eligible=False, why=f"it is {letter.get_resolution_display().lower()} already")
    if letter.operation.status != Status.FAILED_PERMANENT:
        return Preview(eligible=False, why=f"its operation is {letter.operation.status}")
    return None


def _why_not(operation: Operation) -> str:
    if (later := order.overtaken_by(operation)) is not None:
        return f"operation {later} came after it for {operation.resource} and has overtaken it"
    return f"operation {operation.id} is {operation.status}, so nothing can be replayed"


def _compensates(job_type: str) -> bool:
    """Say whether a job could release what it has reserved; one that is not known here might."""
    job = jobs.find(job_type)
    return job is None or job.compensate is not None


def _left(letter: DeadLetter) -> str:
    """Say what a discard would leave behind; empty: nothing."""
    for row in effects.known(letter.operation_id):
        if row.certainty == Certainty.MAYBE_SENT:
            return f"its {row.step!r} may have been done: replay it, to look that up, or settle it"
        if row.stands and _compensates(letter.job_type):
            return f"its {row.step!r} is done and not released: replay it"
    return ""


def _why_no_discard(letter: DeadLetter) -> str:
    stands = f"operation {letter.operation_id} is {letter.operation.status}, so nothing can be discarded"
    return _left(letter) or stands


def _take(letter_id: int, reason: str, resolution: Resolution) -> DeadLetter:
    """Resolve a waiting dead letter, one act only: the others find it resolved."""
    if not reason.strip():
        raise Refused("say why: the reason is kept in the audit")
    at = {"resolved_at" if resolution == Resolution.DISCARDED else "replayed_at": Now()}
    waiting = DeadLetter.objects.filter(id=letter_id, resolution=Resolution.WAITING)
    taken = waiting.update(resolution=resolution, **at)
    letter = DeadLetter.objects.select_related("operation").filter(id=letter_id).first()
    if letter is None:
        raise Refused(f"there is no dead letter {letter_id}")
    if not taken:
        raise Refused(f"dead letter {letter_id} is {letter.get_resolution_display().lower()} already")
    return letter


def _job(name: str) -> jobs.Job:
    try:
        return jobs.get(name)
    except jobs.NoSuchJob as unknown:
        raise Refused(str(unknown)) from unknown


def _audit(
    letter: DeadLetter, operation: Operation, *, action: str, actor: str, reason: str, request_id: str
) -> None:
    AuditEntry.objects.create(
        actor=actor[:150],
        action=action,
        target=f"operation:{operation.id}",
        reason=reason,
        before={
            "status": letter.operation.status,
            "reason": letter.operation.reason,
            "dead_letter": letter.id,
        },
        after={"status": operation.status, "reason": operation.reason, "replays": operation.replays},
        request_id=request_id,
    )
