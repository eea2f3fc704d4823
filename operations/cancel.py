"""Cancel: an operation's owner wants it no more. It ends at once, or is asked to, or it is too late.

It ends at once if no run has it. A run that has it may notice (`run.check()`) and stop; if it fails, drains
or is lost instead, whoever sees the operation next ends it. What has recorded a step is taken back if its job
compensates, up to the job's point of no return; else it can't be.
"""

import logging

from django.db import transaction

from operations import compensation, dead_letters, effects, jobs, metrics, reading
from operations.accept import VersionMoved
from operations.arrows import PROCESSING, SELECTED, Arrow, one
from operations.claims import HOLDS_CLAIM, Claim
from operations.effects import RESERVED
from operations.lifecycle import END_CLAIM, Found
from operations.models import WAITING, Category, Operation, Reason, Resolution, Status
from operations.publish import publish

log = logging.getLogger(__name__)

# Note [Withdrawn as seen]
# Whether a step is recorded stands in another table, which a statement sees as it was when the statement
# began, although the row itself it sees as it is. So the row must be as it was before: waiting, and of no
# later run. Then no run was under way in between, and only a run records steps.

NOTHING_DONE = f"NOT {RESERVED}"
AS_SEEN = "(%(version)s::bigint IS NULL OR version = %(version)s)"


class NotCancellable(Exception):
    """It is over, or part of it is done and can't be taken back."""


_withdraw = Arrow(
    sources=WAITING,
    to=Status.IGNORED,
    where=f"runs = %(runs)s AND {AS_SEEN} AND {NOTHING_DONE}",  # See Note [Withdrawn as seen]
    change="""finished_at = clock_timestamp(), waiting_for = '',
        cancel_requested_at = COALESCE(o.cancel_requested_at, clock_timestamp())""",
)
_stop = Arrow(
    sources=PROCESSING,
    to=Status.IGNORED,
    where=f"{HOLDS_CLAIM} AND cancel_requested_at IS NOT NULL AND {NOTHING_DONE}",
    change=f"finished_at = clock_timestamp(), {END_CLAIM}",
)
# No move, but seen: it changes the version. Whatever the operation does meanwhile, until it ends.
REQUEST = f"""
    UPDATE operations_operation
    SET cancel_requested_at = COALESCE(cancel_requested_at, clock_timestamp()),
        version = version + CASE WHEN cancel_requested_at IS NULL THEN 1 ELSE 0 END
    WHERE id = %(id)s AND status IN ('queued', 'processing', 'retry_scheduled') AND {AS_SEEN}
    RETURNING {SELECTED}"""  # noqa: S608 (only constants are put in)


def cancel(seen: Found, *, only_as_seen: bool = False) -> Found:
    """End an operation for its owner, or ask its run to; give it as it then stands. Twice is fine.

    `only_as_seen`: not if it has changed since it was read. Opens transactions.

    Raises:
        NotCancellable: it has ended otherwise, or a step of it is recorded.
        operations.accept.VersionMoved: it is no longer as it was seen.
    """
    operation = seen.operation
    if is_cancelled(operation):
        return seen
    _refuse_if_too_late(operation)
    version = operation.version if only_as_seen else None
    ended = _end_for_owner(operation, version=version)
    if ended is None:
        asked = one(REQUEST, id=operation.id, version=version)
        if asked is None:
            return _after_all(operation)
        log.info("operation.cancel_requested", extra={**asked.log_fields(), "actor": _owner(asked)})
        ended = _end_for_owner(asked) or release(asked, actor=_owner(asked)) or asked
    return Found(ended, seen.result, seen.error)


def is_cancelled(operation: Operation) -> bool:
    return operation.reason == Reason.CANCELLED


def withdraw(operation: Operation, *, actor: str, version: int | None = None) -> Operation | None:
    """End an operation that waits, and has not run since it was read as `operation`. Opens a transaction.

    None: a run has had it since, or a step of it is recorded.
    """
    if operation.status not in WAITING:
        return None
    with transaction.atomic():
        return _with_its_letter(
            _withdraw(
                operation.id, reason=Reason.CANCELLED, actor=actor, runs=operation.runs, version=version
            )
        )


def release(operation: Operation, *, actor: str) -> Operation | None:
    """Let an operation that waits and is cancelled release what it has reserved, and publish it for that.

    None: nothing is left that can be released, a run has had it since, or an effect's outcome is unknown.
    """
    job = jobs.find(operation.job_type)
    turned = None if job is None else compensation.turn_back_cancelled(operation, job, actor=actor)
    if turned is not None:
        publish(turned)
    return turned


def stop(claim: Claim) -> Operation | None:
    """End a run that has noticed, in `run.check()`, that it is cancelled. Opens a transaction."""
    operation = claim.operation
    with transaction.atomic():
        return _with_its_letter(
            _stop(operation.id, token=claim.token, reason=Reason.CANCELLED, actor=operation.claimed_by)
        )


def _with_its_letter(cancelled: Operation | None) -> Operation | None:
    """Close the dead letter of one that was replayed: nobody waits for it any more."""
    if cancelled is not None and cancelled.replays:
        dead_letters.resolve(cancelled, Resolution.DISCARDED)
    return cancelled


def _end_for_owner(operation: Operation, *, version: int | None = None) -> Operation | None:
    cancelled = withdraw(operation, actor=_owner(operation), version=version)
    if cancelled is not None:
        metrics.COMPLETED.labels(
            cancelled.job_type, cancelled.status, cancelled.reason, Category.CANCELLED
        ).inc()
        log.info("operation.cancelled", extra={**cancelled.log_fields(), "actor": _owner(operation)})
    return cancelled


def _refuse_if_too_late(operation: Operation) -> None:
    if operation.is_final:
        raise NotCancellable(f"it is {operation.status} already")
    if operation.runs:
        _refuse_past_return(operation)


def _refuse_past_return(operation: Operation) -> None:
    job = jobs.find(operation.job_type)
    stands = [row for row in effects.known(operation.id) if row.stands]
    final = [row for row in stands if job is None or job.compensate is None or row.step == job.no_return]
    if final:
        raise NotCancellable(f"its step {final[0].step!r} is done and can't be taken back")


def _after_all(operation: Operation) -> Found:
    """Say what has become of an operation that could not be asked to end."""
    found = reading.stands(operation.id, owner_id=operation.owner_id)
    if found is None:
        raise NotCancellable("it is over, and forgotten")
    if is_cancelled(found.operation):
        return found
    _refuse_if_too_late(found.operation)
    raise VersionMoved(f"operation {operation.id} is no longer as it was at version {operation.version}")


def _owner(operation: Operation) -> str:
    return f"user:{operation.owner_id}"
