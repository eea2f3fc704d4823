"""One run of one operation, from its message to its last move, stage by stage.

receive → look → lock → claim and fence → call → commit → after commit → release → acknowledge. Whatever
happens, the message is acknowledged: what is left to do is in the database, where the relay finds it.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from django.db import InterfaceError, OperationalError, close_old_connections, connection, transaction
from psycopg.types.json import Jsonb
from redis.exceptions import RedisError

from operations import (
    accept,
    cache_writers,
    claims,
    compensation,
    dead_letters,
    lifecycle,
    metrics,
    secrecy,
    storable,
)
from operations.certainty import certain
from operations.claims import Claim
from operations.crashpoints import crashpoint
from operations.jobs import Duplicate, Job, NotYet
from operations.models import WAITING, Category, Operation, Reason, Resolution, Status
from operations.publish import publish
from tasks import after_commit, backlog, breaker, drain, holds, lock, look, outcome, versions
from tasks.drain import Interrupted
from tasks.duties import Duties
from tasks.handle import Cancelled, ClaimLost, LockLost, OldNews, Run
from tasks.heartbeat import Heartbeat
from tasks.limits import soft_limit
from tasks.retry import CallFailed, SoftLimitPassed

log = logging.getLogger(__name__)


def execute(task: Duties, operation_id: str) -> None:
    """Run the operation that a message names, and others that wait if this one shows that many do."""
    began = time.monotonic()
    close_old_connections()
    find = partial(look.at, operation_id, task.job, worker=task.worker, released=task.released)
    waited = _one(task, find, began=began)
    if task.released:  # what a hold lets through is this one alone
        return
    if task.tells_of_more or waited > backlog.BEHIND_SECONDS:
        for glance in backlog.waiting(task.job, began=began):
            _one(task, partial(look.closer, glance, task.job, worker=task.worker), began=began)


def _one(task: Duties, find: Callable[[], look.Seen | None], *, began: float) -> float:
    """Run one operation, if there is one to be found. Give the seconds that it had waited."""
    with drain.Working(hard_limit=task.job.hard_limit - (time.monotonic() - began)):
        crashpoint("run.received")
        try:
            waited = _execute(task, find)
        finally:
            holds.let_go()
        crashpoint("run.done")
    return waited


def _execute(task: Duties, find: Callable[[], look.Seen | None]) -> float:
    seen = find()
    if seen is None:
        return 0.0
    if drain.begun():
        publish(seen.operation)  # for another worker: this one starts nothing any more
        return 0.0
    token = uuid4()
    locked = look.take_lock(task, seen.operation, token)
    if locked is None:
        return 0.0
    crashpoint("lock.taken")
    if not breaker.may_begin(task, token):
        _leave(seen.operation, token)
        return 0.0
    claimed_at = time.monotonic()
    claim = _claim(task, seen, token)
    crashpoint("claim.committed")
    if claim is None:
        breaker.give_back(task, token)
        _leave(seen.operation, token)
        return 0.0
    waited = _count_wait(claim.operation)
    log.info(
        "operation.claimed", extra={**claim.operation.log_fields(), "status_from": seen.operation.status}
    )
    heartbeat = Heartbeat(claim, claimed_at=claimed_at)
    _work(task, heartbeat, seen, adopt=locked == "left over")
    return waited


def _claim(task: Duties, seen: look.Seen, token: UUID) -> Claim | None:
    operation = seen.operation
    values: dict[str, Any] = {
        "job_type": task.job.name,
        "worker": task.worker,
        "token": token,
        "put_off": seen.put_off,
        "released": task.released,
    }
    if task.job.on_dead == "skip" and operation.resource_seq is not None:
        values["skips_in"] = operation.resource
    return certain(
        lambda: lifecycle.claim(operation.id, **values),
        learn=lambda: claims.recall(operation.id, token=token),
    )


def _leave(operation: Operation, token: UUID) -> None:
    """Another delivery was first. Who came meanwhile saw the lock taken, in vain."""
    look.found_nothing(operation)
    with suppress(lock.StoreAway):  # then the lock ends by itself
        if operation.resource and lock.free(operation.resource, token=token):
            after_commit.wake(operation.resource)


def _count_wait(operation: Operation) -> float:
    started_at = operation.started_at or operation.run_at
    waited = (started_at - operation.run_at).total_seconds()
    metrics.WAIT_SECONDS.labels(operation.job_type, operation.job_type).observe(waited)
    return waited


def _work(task: Duties, heartbeat: Heartbeat, seen: look.Seen, *, adopt: bool) -> None:
    claim = heartbeat.claim
    with heartbeat:
        run = Run(
            claim,
            heartbeat,
            began=time.monotonic(),
            no_return=task.job.no_return,
            compensates=task.job.compensate is not None,
        )
        ended = _attempt(task, run, seen, adopt=adopt)
    moved, category = outcome.move(task, claim, ended)
    if moved is None:
        metrics.FENCE_REJECTED.labels(task.job.name, "final").inc()
        metrics.ATTEMPTS.labels(task.job.name, "lost_lease", category).inc()
        log.warning("operation.fence_rejected", extra=claim.operation.log_fields())
        return
    seconds = time.monotonic() - run.began
    metrics.ATTEMPT_SECONDS.labels(task.job.name, moved.status).observe(seconds)
    if moved.status != Status.SUCCEEDED:  # a success has seen to it in its own on_commit
        after_commit.settle(moved)
    if moved.status in WAITING and moved.published_at is not None:
        publish(moved)
    look.conclude(moved, category, duration=round(seconds, 4))
    look.honour_cancel(moved, worker=task.worker)


def _attempt(task: Duties, run: Run, seen: look.Seen, *, adopt: bool) -> outcome.Outcome:
    """Do the job once: the operation if it has succeeded, else why not. What a job raises ends here."""
    try:
        if adopt:
            _adopt_lock(task, run.claim)
        if run.claim.operation.compensating_for:
            return _compensate(task.job, run, seen.values)
        answer = _call(task.job.call, task.job, run, seen.values)
        return _commit(task.job, run, answer, seen)
    except (ClaimLost, LockLost, Interrupted, OldNews, Cancelled, Duplicate, NotYet) as vain:
        return vain
    except (Exception, SoftLimitPassed) as error:  # the one place: whatever a job raises is its failure
        failure = secrecy.scrubbed(task.describe(error), task.job, seen.payload)
        return replace(failure, lock_lost=run.heartbeat.lock_lost, unresolved=run.effects.unresolved)


def _adopt_lock(task: Duties, claim: Claim) -> None:
    operation = claim.operation
    try:
        adopted = lock.adopt(
            operation.resource, token=claim.token, operation_id=operation.id, worker=task.worker
        )
    except lock.StoreAway as away:
        raise LockLost(str(away)) from away
    if not adopted:
        raise LockLost(f"the lock of {operation.resource} was lost")


def _compensate(job: Job, run: Run, values: Mapping[str, Any]) -> Operation:
    """Release what the operation has reserved, and let it end as it was to end before."""
    if job.compensate is None:
        raise CallFailed(Category.BUG, f"{job.name} has begun to compensate, and this code no longer does")
    _call(job.compensate, job, run, values)
    run.check_claim()
    crashpoint("compensate.before_end")
    ended = certain(lambda: compensation.conclude(run.claim), learn=lambda: claims.outcome(run.claim))
    if ended is None:
        raise _refusal(job, run.claim)
    return ended


def _call(call: Callable[..., Any] | None, job: Job, run: Run, values: Mapping[str, Any]) -> Any:
    """Ask the outside, with no transaction open and within the soft limit."""
    if call is None:
        return None
    if connection.in_atomic_block:
        raise AssertionError(f"{job.name}: a call must not be made inside a transaction")
    with soft_limit(_left(job, run)):
        answer = call(run, **values)
    crashpoint("call.answered")
    return answer


def _commit(job: Job, run: Run, answer: Any, seen: look.Seen) -> Operation:
    """Let the handler write, prove the claim last, and commit both; or neither, and say why."""
    claim, stating = run.claim, job.version_member is not None
    brought = versions.stated(claim.operation, seen.stored) if stating else versions.answered(job, answer)
    run.check_claim()
    applied = versions.Applied(claim.applied_version, claim.applied_by, claim.applied_hash)
    versions.refuse_old(claim.operation, brought, applied)
    stale = job.stale_after(seen.values)
    owed = {"version": brought.version, "digest": brought.digest, "invalidate": stale}
    with _marked(stale, job, run):
        return certain(
            lambda: _finish(job, run, answer, seen.values, **owed), learn=lambda: _finished(claim, stale)
        )


@contextmanager
def _marked(stale: Sequence[str], job: Job, run: Run) -> Iterator[None]:
    """Mark cached values that must not be old for a moment; if that can't be done, nothing is committed."""
    writer, seconds = run.claim.token.hex, run.began + job.hard_limit - time.monotonic()
    try:
        cache_writers.about_to_change(stale, writer=writer, seconds=max(0.0, seconds))
    except (RedisError, OSError) as error:
        raise CallFailed(
            Category.DEPENDENCY_UNAVAILABLE, f"the cache: {type(error).__name__}", "cache"
        ) from error
    try:
        yield
    except (OperationalError, InterfaceError):
        raise  # it may be committed: the marks end by themselves
    except BaseException:
        cache_writers.unchanged(stale, writer=writer)
        raise


def _finish(job: Job, run: Run, answer: Any, values: Mapping[str, Any], **owed: Any) -> Operation:
    """Do the finishing transaction once; the same answer may be given to the handler again."""
    run.heartbeat.ending = False
    handling = run.for_a_handler()
    with transaction.atomic():
        with soft_limit(_left(job, run)):
            result = job.handler(handling, answer, **values)
        for job_type, wanted in handling.follow_ups():
            accept.follow_up(run.claim.operation, job_type, wanted)
        crashpoint("finish.before_proof")
        run.heartbeat.ending = True
        stored = None if result is None else Jsonb(storable.cleaned(result))
        succeeded = lifecycle.succeed(run.claim, hard_limit=job.hard_limit, result=stored, **owed)
        if succeeded is None:
            raise _refusal(job, run.claim)
        if succeeded.replays:
            dead_letters.resolve(succeeded, Resolution.REPLAYED_OK)
        # See Note [Robust callbacks have names].
        transaction.on_commit(lambda: after_commit.settle(succeeded, owed["invalidate"]), robust=True)
        crashpoint("finish.before_commit")
    return succeeded


def _finished(claim: Claim, stale: list[str]) -> Operation | None:
    """Learn whether the finish was committed although its answer was lost; if so, go on after it."""
    finished = claims.outcome(claim)
    if finished is not None:
        after_commit.settle(finished, stale)
    return finished


def _left(job: Job, run: Run) -> float:
    return run.began + job.soft_limit - time.monotonic()


def _refusal(job: Job, claim: Claim) -> BaseException:
    """Say why the proof said no. Raised inside the transaction, so what the handler wrote is rolled back."""
    standing = claims.standing(claim, hard_limit=job.hard_limit)
    if standing is None or not standing.claimed:
        return ClaimLost(f"{claim.operation} is no longer claimed by this run")
    if not standing.in_time:
        return CallFailed(
            Category.TIMEOUT, f"the result came later than the hard limit of {job.hard_limit} s"
        )
    if standing.fence != claim.fence:
        return LockLost(f"{claim.operation.resource} has been claimed by another operation")
    if standing.unresolved:
        return CallFailed(Category.OUTCOME_UNKNOWN, "an effect was sent, and what became of it is not known")
    return OldNews(Reason.STALE_VERSION)
