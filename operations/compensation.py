"""Turn back: release what an operation has reserved before it ends otherwise than by success.

It waits again, `compensating_for` the end that it was to have; its runs call only the job's `compensate`,
with a budget of attempts and time as long as the work's own; when that is done it ends as it was to end.
"""

from dataclasses import asdict
from typing import Any, NamedTuple

from django.conf import settings
from django.db import transaction

from operations import dead_letters, statements
from operations.arrows import PROCESSING, Arrow
from operations.claims import HOLDS_CLAIM, Claim
from operations.dead_letters import Failure
from operations.deadlines import PASSED
from operations.deadlines import values as deadlines_values
from operations.effects import PAST_RETURN, RESERVED, UNRESOLVED
from operations.jobs import Job
from operations.lifecycle import END_CLAIM, IS_LEFT, LEASE_OVER, NOW, die
from operations.models import (
    WAITING,
    Category,
    Operation,
    OperationData,
    Reason,
    Resolution,
    Status,
)

# Note [Nothing is released before it is known]
# What may have been sent may have been done. So nobody turns back while an effect is unresolved: it is looked
# up first, under the claim, and what it turns out to be is released like everything else. And past its point
# of no return (the money is taken) an operation goes on, or waits for a person; nothing is taken back.

LEFT = f"compensating_for = '' AND {RESERVED} AND NOT {UNRESOLVED} AND NOT {PAST_RETURN}"
TURN = f"""compensating_for = %(ending)s, attempt = 0, interruptions = 0, lookups = 0, waiting_for = '',
    deadline_at = clock_timestamp() + %(deadline)s, {NOW}"""


class Ending(NamedTuple):
    """The end that has to wait."""

    status: str
    reason: str

    def __str__(self) -> str:
        """Give it as it is stored."""
        return f"{self.status} {self.reason}"


CANCELLED = Ending(Status.IGNORED, Reason.CANCELLED)
NOT_WANTED = Failure(category=Category.CANCELLED, message="its owner has cancelled it")
LATE = Failure(category=Category.TIMEOUT, message="its deadline has passed")

_turn_back = Arrow(
    sources=PROCESSING,
    to=Status.RETRY_SCHEDULED,
    where=f"{HOLDS_CLAIM} AND {LEFT}",
    change=f"{TURN}, {END_CLAIM}",
)
_turn_back_lost = Arrow(
    sources=PROCESSING,
    to=Status.RETRY_SCHEDULED,
    where=f"{LEASE_OVER} AND NOT {IS_LEFT} AND {LEFT}",
    change=f"{TURN}, {END_CLAIM}",
)
# See Note [Withdrawn as seen].
_turn_back_cancelled = Arrow(
    sources=WAITING,
    to=Status.RETRY_SCHEDULED,
    where=f"runs = %(runs)s AND cancel_requested_at IS NOT NULL AND {LEFT}",
    change=TURN,
    owes="false",
)
_turn_back_late = Arrow(
    sources=WAITING,
    to=Status.RETRY_SCHEDULED,
    where=f"runs = %(runs)s AND {PASSED} AND {LEFT}",
    change=TURN,
    owes="false",
)


def turn_back(claim: Claim, job: Job, ending: Ending, failure: Failure) -> Operation | None:
    """Let a run's operation release what it has reserved, for the caller to publish. Opens a transaction.

    None: nothing is left to release, it is past its return, or it is releasing already; or the claim is lost.
    """
    operation = claim.operation
    if job.compensate is None or operation.compensating_for:
        return None
    values = {"token": claim.token, "actor": operation.claimed_by}
    return _turn(_turn_back, operation, job, ending, failure, values)


def turn_back_lost(operation: Operation, job: Job, failure: Failure, **lost: Any) -> Operation | None:
    """Do the same for one whose worker is lost in its last attempt. `lost` is as in lifecycle.take_back."""
    if job.compensate is None or operation.compensating_for:
        return None
    timed_out = failure.category == Category.TIMEOUT
    reason = Reason.TIMEOUT_EXHAUSTED if timed_out else Reason.WORKER_LOST
    values = {
        "token": operation.claim_token,
        "most": settings.MAX_LOOKUPS_BEFORE_A_LOSS,
        "lease": settings.LEASE_SECONDS,
    }
    ending = Ending(Status.FAILED_PERMANENT, reason)
    return _turn(_turn_back_lost, operation, job, ending, failure, {**values, **lost})


def turn_back_cancelled(operation: Operation, job: Job, *, actor: str) -> Operation | None:
    """Do the same for one that waits and whose owner has cancelled it."""
    if job.compensate is None or operation.status not in WAITING:
        return None
    values = {"runs": operation.runs, "actor": actor}
    return _turn(_turn_back_cancelled, operation, job, CANCELLED, NOT_WANTED, values)


def turn_back_late(operation: Operation, job: Job, *, actor: str) -> Operation | None:
    """Do the same for one that waits and whose deadline has passed."""
    if job.compensate is None:
        return None
    values = {"runs": operation.runs, "actor": actor, **deadlines_values()}
    ending = Ending(Status.FAILED_PERMANENT, Reason.DEADLINE_PASSED)
    return _turn(_turn_back_late, operation, job, ending, LATE, values)


def _turn(
    arrow: Arrow, operation: Operation, job: Job, ending: Ending, failure: Failure, values: dict[str, Any]
) -> Operation | None:
    stated: dict[str, Any] = {
        "ending": str(ending),
        "no_return": job.no_return,
        "deadline": job.deadline,
        **values,
    }
    lost = ending.reason == Reason.WORKER_LOST
    with transaction.atomic():
        turned = arrow(
            operation.id,
            reason=Reason.WORKER_LOST if lost else failure.category,
            error=f"{ending.status}: {ending.reason}, once all is released: {failure.message}",
            **stated,
        )
        if turned is not None:
            OperationData.objects.filter(operation=turned).update(compensated=asdict(failure))
    return turned


UNDO = """
    UPDATE operations_effect SET undone_at = clock_timestamp()
    WHERE operation_id = %(id)s AND undone_at IS NULL RETURNING step"""
DONE = f"finished_at = clock_timestamp(), {END_CLAIM}"
RELEASED = f"{HOLDS_CLAIM} AND compensating_for <> '' AND NOT {UNRESOLVED}"
_fail = Arrow(sources=PROCESSING, to=Status.FAILED_PERMANENT, where=RELEASED, change=DONE)
_ignore = Arrow(sources=PROCESSING, to=Status.IGNORED, where=RELEASED, change=DONE)


def conclude(claim: Claim) -> Operation | None:
    """End an operation that has released everything, as it was to end. Opens a transaction.

    Its steps are undone: a replay begins them anew, under keys of a new generation. None: the claim is lost,
    or an effect is unresolved.
    """
    operation = claim.operation
    status, reason = operation.compensating_for.split()
    values: dict[str, Any] = {"token": claim.token, "actor": operation.claimed_by, "reason": reason}
    with transaction.atomic():
        if status == Status.IGNORED:
            ended = _ignore(operation.id, **values)
        else:
            ended = die(_fail, operation.id, failure=_compensated(operation), **values)
        if ended is not None:
            statements.rows(UNDO, {"id": operation.id})
        if ended is not None and ended.replays and status == Status.IGNORED:
            dead_letters.resolve(ended, Resolution.DISCARDED)
    return ended


def _compensated(operation: Operation) -> Failure:
    data = OperationData.objects.only("compensated").get(operation=operation)
    return Failure(**(data.compensated or {"category": Category.NONE, "message": ""}))
