"""Before the claim: is there anything to do, and may it be done? And what is said when it is done."""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from rest_framework.exceptions import ValidationError

from operations import cancel, compensation, deadlines, jobs, lifecycle, metrics, schemas, secrecy
from operations.certainty import afresh
from operations.dead_letters import Failure
from operations.jobs import Job
from operations.lifecycle import Glance
from operations.models import WAITING, Category, Operation, Reason, Status
from operations.publish import publish
from tasks import after_commit, lock, versions
from tasks.duties import Duties
from tasks.handle import OldNews
from tasks.retry import CallFailed

log = logging.getLogger(__name__)

EVENTS = {
    Status.SUCCEEDED: (logging.INFO, "operation.succeeded"),
    Status.IGNORED: (logging.INFO, "operation.ignored"),
    Status.RETRY_SCHEDULED: (logging.INFO, "operation.retry_scheduled"),
    Status.QUEUED: (logging.INFO, "operation.interrupted"),
    Status.FAILED_PERMANENT: (logging.WARNING, "operation.failed"),
}
RESULTS = {Status.SUCCEEDED: "success", Status.RETRY_SCHEDULED: "retry", Status.QUEUED: "interrupted"}


class Unfit(Exception):
    """The operation must not be run, and waiting will not help."""

    def __init__(self, reason: Reason, category: Category, message: str) -> None:
        """Say why, for the row and for the dead letter."""
        super().__init__(message)
        self.reason = reason
        self.failure = Failure(category=category, message=message[:500])


class Seen(NamedTuple):
    """An operation that may be claimed: as it stood, and its payload, as JSON and as Python values."""

    operation: Operation
    payload: dict[str, Any]
    stored: dict[str, Any]  # the payload as it was sent, whatever upgrades made of it
    values: dict[str, Any]
    put_off: bool  # its deadline


def at(operation_id: object, job: Job, *, worker: str, released: Sequence[int] = ()) -> Seen | None:
    """Find the operation that a message names. None: it needs no run, or has been refused one."""
    glance = _glance(operation_id, job, released)
    return None if glance is None else closer(glance, job, worker=worker)


def closer(glance: Glance, job: Job, *, worker: str) -> Seen | None:
    """Judge what was seen of an operation: as `at` does, without reading it again."""
    if honour_cancel(glance.operation, worker=worker) or _must_wait(glance, job):
        return None
    try:
        return _fit(glance, job)
    except (Unfit, OldNews, schemas.TooNew) as why:
        _turn_away(glance.operation, why, worker)
    return None


def _turn_away(operation: Operation, why: Unfit | OldNews | schemas.TooNew, worker: str) -> None:
    match why:
        case Unfit():
            _refuse(operation, why, worker)
        case OldNews():
            _pass_over(operation, why, worker)
        case schemas.TooNew():
            _put_off(operation, Reason.UNSUPPORTED_SCHEMA, f"newer code: {why}", worker=worker)


def honour_cancel(operation: Operation, *, worker: str) -> bool:
    """End an operation that waits although its owner has cancelled it; False: it goes on.

    Asked for while a run was under way, which has ended without it; not done if a step is recorded.
    """
    if operation.cancel_requested_at is None or operation.status not in WAITING:
        return False
    if operation.compensating_for:
        return False
    cancelled = cancel.withdraw(operation, actor=worker)
    if cancelled is None:
        return cancel.release(operation, actor=worker) is not None
    after_commit.settle(cancelled)
    conclude(cancelled, Category.CANCELLED)
    return True


def _must_wait(glance: Glance, job: Job) -> bool:
    """Leave alone what is not due, blocked or held: it makes no move, and others will see to it."""
    if not glance.due:
        found_nothing(glance.operation)
    elif glance.held:  # the relay lets it pass, when it is its turn
        metrics.BREAKER_REJECTED.labels(job.dependency).inc()
        log.debug("delivery.held", extra=glance.operation.log_fields())
    elif glance.blocked:  # the finish of the one before it wakes it
        log.debug("delivery.blocked", extra=glance.operation.log_fields())
    return not glance.due or glance.held or glance.blocked


def found_nothing(operation: Operation) -> None:
    """Note a message that was one too many: its operation is final, not due, or claimed by another run."""
    metrics.DUPLICATES.labels(operation.job_type).inc()
    log.debug("delivery.duplicate", extra=operation.log_fields())


def take_lock(task: Duties, operation: Operation, token: UUID) -> str | None:
    """Take the resource's lock: "taken", "left over" by an own lost claim, or None: it has to wait."""
    if not operation.resource:
        return "taken"
    try:
        holder = task.take_lock(operation, token)
    except lock.StoreAway as error:
        _put_off(operation, Reason.DEPENDENCY_UNAVAILABLE, str(error), worker=task.worker)
        return None
    if holder is None:
        return "taken"
    if holder.operation_id == str(operation.id):
        return "left over"
    sentence = f"lock {operation.resource} held by {holder}"
    _put_off(operation, Reason.LOCK_CONTENDED, sentence, worker=task.worker)
    if lock.is_free(operation.resource):  # freed before we were seen to wait, so nobody else wakes us
        after_commit.wake(operation.resource)
    return None


def _put_off(operation: Operation, reason: str, waiting_for: str, *, worker: str) -> None:
    """Let an operation wait without spending an attempt."""
    waiting = lifecycle.wait(operation.id, reason=reason, waiting_for=waiting_for, actor=worker)
    if waiting is not None:
        log.info("operation.waits", extra={**waiting.log_fields(), "waiting_for": waiting_for})


def conclude(operation: Operation, category: str, **fields: Any) -> None:
    """Log and count the move that ended a run, or that ended an operation before one."""
    level, event = EVENTS[Status(operation.status)]
    moved = {"status_to": operation.status, "reason": operation.reason, "category": category}
    log.log(level, event, extra={**operation.log_fields(), **moved, **fields})
    metrics.ATTEMPTS.labels(
        operation.job_type, RESULTS.get(Status(operation.status), "terminal"), category
    ).inc()
    if operation.finished_at is not None:
        metrics.COMPLETED.labels(operation.job_type, operation.status, operation.reason, category).inc()
        metrics.ATTEMPTS_NEEDED.labels(operation.job_type, operation.status).observe(operation.attempt)
        seconds = (operation.finished_at - operation.created_at).total_seconds()
        metrics.COMPLETION_SECONDS.labels(operation.job_type, operation.status).observe(seconds)
    if operation.status == Status.FAILED_PERMANENT:
        metrics.DEAD_LETTERS_IN.labels(operation.job_type, operation.reason).inc()


def _glance(operation_id: object, job: Job, released: Sequence[int]) -> Glance | None:
    try:
        id = UUID(str(operation_id))
    except ValueError:
        log.warning("message.unreadable", extra={"job_type": job.name})
        return None
    glance = afresh(lambda: lifecycle.look(id, job_type=job.name, released=released))
    if glance is None:
        log.warning("message.names_nothing", extra={"job_type": job.name, "operation_id": str(id)})
    return glance


def _fit(glance: Glance, job: Job) -> Seen:
    """Give the operation with its payload as this code wants it, or raise Unfit, OldNews or TooNew."""
    if glance.overdue:
        deadline = f"the deadline was {deadlines.effective(glance.operation).isoformat()}"
        raise Unfit(Reason.DEADLINE_PASSED, Category.TIMEOUT, deadline)
    try:
        stored = secrecy.opened(glance.payload)
        payload = schemas.upgraded(job, stored, version=glance.operation.schema_version)
        brought = versions.stated(glance.operation, stored)
        _refuse_old(glance, brought)
        return Seen(glance.operation, payload, stored, job.validate(payload), glance.put_off)
    except CallFailed as error:
        raise Unfit(Reason.INVALID_INPUT, Category.INVALID_INPUT, str(error)) from error
    except secrecy.Unreadable as sealed:  # another worker may have the key, or this one after a restart
        raise schemas.TooNew(str(sealed)) from sealed
    except schemas.TooOld as old:
        raise Unfit(Reason.UNSUPPORTED_SCHEMA, Category.BUG, str(old)) from old
    except ValidationError as error:
        raise Unfit(
            Reason.INVALID_INPUT,
            Category.INVALID_INPUT,
            f"the payload is not valid: {secrecy.without_values(job, error.detail)}",
        ) from error


def _refuse_old(glance: Glance, brought: versions.Brought) -> None:
    """Look whether its version is old, of one that has done nothing yet: of another its run decides."""
    if not glance.operation.step and not glance.operation.compensating_for:
        versions.refuse_old(glance.operation, brought, versions.Applied(*glance.applied))


def _pass_over(operation: Operation, old: OldNews, worker: str) -> None:
    ignored = lifecycle.pass_over(operation.id, reason=old.reason, actor=worker)
    if ignored is not None:
        after_commit.settle(ignored)
        conclude(ignored, Category.NONE)


def end_late(operation: Operation, *, worker: str) -> bool:
    """End an operation that waits and whose deadline has passed, once what it has reserved is released."""
    job = jobs.find(operation.job_type)
    late = None if job is None else compensation.turn_back_late(operation, job, actor=worker)
    if late is not None:
        publish(late)
        conclude(late, Category.TIMEOUT)
        return True
    reason = Reason.COMPENSATION_FAILED if operation.compensating_for else Reason.DEADLINE_PASSED
    deadline = f"the deadline was {deadlines.effective(operation).isoformat()}"
    failure = Failure(category=Category.TIMEOUT, message=deadline)
    return _end(operation, reason, failure, worker, spares=job is None)


def _refuse(operation: Operation, unfit: Unfit, worker: str) -> None:
    if unfit.reason == Reason.DEADLINE_PASSED:
        end_late(operation, worker=worker)
    else:
        _end(operation, unfit.reason, unfit.failure, worker)


def _end(operation: Operation, reason: str, failure: Failure, worker: str, *, spares: bool = False) -> bool:
    refused = lifecycle.refuse(operation.id, reason=reason, failure=failure, actor=worker, spares=spares)
    if refused is not None:
        after_commit.settle(refused)
        conclude(refused, failure.category)
    return refused is not None
