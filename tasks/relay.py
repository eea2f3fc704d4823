"""Make true what the fast path could not: publish, take back, repeat, end. Any number of copies may run.

Each duty does one small batch and says how many rows it touched. Two relays never double work: every row is
taken by a conditional statement, and no transaction stays open while the broker or the cache is asked.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db.models.functions import Now

from operations import compensation, deadlines, jobs, lifecycle, metrics, retention, statements
from operations.arrows import SELECTED, from_row
from operations.crashpoints import crashpoint
from operations.dead_letters import Failure
from operations.deadlines import PASSED
from operations.holds import FREE_TYPES, NOT_HELD
from operations.lifecycle import LEASE_OUT
from operations.models import Category, DeadLetter, Operation, Reason, Status, Transition
from operations.order import NOT_BLOCKED
from operations.publish import DEAD_LETTER, BrokerAway, ask_for_report, publish, publisher
from tasks import after_commit, canary, epoch, evidence, gauges, look, reconciled, releases, skew
from tasks.after_commit import Owed
from tasks.backlog import MARK
from tasks.retry import jittered
from tasks.silence import Lease, Silence

log = logging.getLogger(__name__)

ACTOR = "relay"
LONGEST_PAUSE_SECONDS = 30.0  # between two tries of the same after-commit work; a cache is told each period

_silence = Silence()

LEASES = """
    SELECT claim_token, lease_expires_at,
        EXTRACT(epoch FROM lease_expires_at - clock_timestamp())::float8
    FROM operations_operation WHERE status = 'processing'"""
LOST = f"""
    SELECT {SELECTED} FROM operations_operation
    WHERE status = 'processing' AND claim_token = ANY(%(silent)s) AND {LEASE_OUT}
    LIMIT %(batch)s FOR NO KEY UPDATE SKIP LOCKED"""  # noqa: S608 (only constants are put in)
MARK_DUE = MARK.format(which="o.published_at IS NULL AND NOT o.job_type = ANY(%(full)s)", by="o.run_at")
SENT_BEFORE = f"""published_at < GREATEST(
    clock_timestamp() - make_interval(secs => %({{age}})s), {epoch.SINCE})"""
HEARD_LONG_AGO = SENT_BEFORE.format(age="age")
MARK_LOST = MARK.format(which=f"o.job_type = %(job_type)s AND {HEARD_LONG_AGO}", by="o.published_at")
# Between its mark and its message an operation has lost none; a batch is sent in less than this.
ON_ITS_WAY_SECONDS = 1.0
# Type by type, as MARK does: a condition on all free types at once may be planned as a scan of all that wait.
COUNT_DUE = f"""
    SELECT kind.job_type, counted.due, counted.long_ago
    FROM unnest({FREE_TYPES}) AS kind (job_type) CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE {SENT_BEFORE.format(age="sending")}) AS due,
            count(*) FILTER (WHERE {HEARD_LONG_AGO}) AS long_ago
        FROM operations_operation AS o
        WHERE o.job_type = kind.job_type AND o.status IN ('queued', 'retry_scheduled')
            AND o.run_at <= clock_timestamp() AND o.published_at IS NOT NULL
            AND {NOT_BLOCKED} AND {NOT_HELD}) AS counted
    WHERE counted.due > 0"""  # noqa: S608
OVERDUE = f"""
    SELECT {SELECTED} FROM operations_operation AS o
    WHERE status IN ('queued', 'retry_scheduled') AND {PASSED} LIMIT %(batch)s"""  # noqa: S608
TAKE_OWED = """
    UPDATE operations_aftercommit
    SET tries = tries + 1,
        run_at = clock_timestamp()
            + make_interval(secs => CASE WHEN invalidate <> '[]' THEN %(first)s::float8
                ELSE LEAST(%(longest)s, %(first)s * 2 ^ LEAST(tries, 10)) END)
    WHERE id = ANY(ARRAY(  -- in IN it might be asked for each row, and the limit be each row's
        SELECT id FROM operations_aftercommit WHERE run_at <= clock_timestamp()
        ORDER BY run_at LIMIT %(batch)s FOR UPDATE SKIP LOCKED))
    RETURNING id, invalidate, resource, claim_token"""


def take_back(*, clock: Callable[[], float] = time.monotonic) -> int:
    """Free operations whose worker let the lease end, by the database's clock and by this process's own.

    A row that is locked is left for the next time: a finish that hangs, and holds up nobody else.
    """
    leases = [Lease(*row) for row in statements.rows(LEASES, {})]
    silent = _silence.among(leases, now=clock())
    if not silent:
        return 0
    values = {"silent": silent, "lease": settings.LEASE_SECONDS, "batch": settings.RELAY_BATCH}
    return sum(_take_back(from_row(row)) for row in statements.rows(LOST, values))


def end_overdue() -> int:
    """End waiting operations whose deadline has passed."""
    overdue = statements.rows(OVERDUE, {"batch": settings.RELAY_BATCH, **deadlines.values()})
    return sum(_end(from_row(row)) for row in overdue)


def repeat_after_commit() -> int:
    """Do what finished runs still owe."""
    values = {
        "longest": LONGEST_PAUSE_SECONDS,
        "first": settings.RELAY_PERIOD_SECONDS,
        "batch": settings.RELAY_BATCH,
    }
    owed = [Owed(*row) for row in statements.rows(TAKE_OWED, values)]
    away: set[str] = set()
    done = [each.id for each in owed if after_commit.perform(each, away)]
    lifecycle.forget(done)
    return len(done)


def publish_due() -> int:
    """Publish operations whose time has come and for which no message was sent. See Note [Hints enough]."""
    values = {
        "batch": settings.RELAY_BATCH,
        "skip": jobs.skipping_the_dead(),
        "full": [
            job.name for job in jobs.every() if publisher.rests(job.name) or publisher.has_plenty(job.name)
        ],
    }
    return _publish_all(statements.rows(MARK_DUE, values), "retry_due")


def republish_lost() -> int:
    """Publish again what the broker must have lost: as many as it lacks, the longest unheard of first.

    A message that waits is not lost, so an honest backlog gets no copies, however old. One relay at a time
    counts: two would both send what is missing.

    Raises:
        BrokerAway: nobody can say what it lacks.
    """
    if not epoch.take_turn():
        return 0
    values = {
        "age": settings.REPUBLISH_AFTER_SECONDS,
        "sending": ON_ITS_WAY_SECONDS,
        "skip": jobs.skipping_the_dead(),
    }
    return _of_each(lambda counted: _republish(*counted), statements.rows(COUNT_DUE, values))


def ask_again_for_reports() -> int:
    """Ask again for reports of dead letters that nobody has made, if it is this relay that counts."""
    if not epoch.take_turn():
        return 0
    patience = timedelta(seconds=settings.REPUBLISH_AFTER_SECONDS)
    unreported = DeadLetter.objects.filter(reported_at=None, created_at__lt=Now() - patience)
    missing = min(unreported.count() - publisher.depth(DEAD_LETTER), settings.RELAY_BATCH)
    oldest = unreported.order_by("id").values_list("id", flat=True)[: max(0, missing)]
    return sum(ask_for_report(id) for id in oldest)


DUTIES = (
    take_back,
    end_overdue,
    repeat_after_commit,
    reconciled.send_round,
    skew.set_aside_unknown,
    skew.release_known,
    releases.probe,
    releases.release,
    publish_due,
    republish_lost,
    ask_again_for_reports,
    canary.send,
    evidence.purge,
    retention.purge_keys,
    retention.purge_operations,
    gauges.sample,
)


def free_lost(operation_id: str, worker: str, *, timed_out: bool = False) -> bool:
    """Free an operation whose child process is known to be dead, and publish it if it may run at once."""
    held = Operation.objects.filter(id=operation_id, status=Status.PROCESSING, claimed_by=worker).first()
    if held is None or not _take_back(held, dead=worker, timed_out=timed_out):
        return False
    publish_due()
    return True


def _take_back(operation: Operation, *, dead: str = "", timed_out: bool = False) -> bool:
    freed = _turn_back(operation, dead=dead, timed_out=timed_out) or lifecycle.take_back(
        operation,
        actor=dead or ACTOR,
        delay_seconds=_pause_after(operation, timed_out=timed_out),
        dead=dead,
        timed_out=timed_out,
    )
    if freed is None:
        return False
    crashpoint("relay.taken_back")
    metrics.LEASE_EXPIRED.labels(freed.job_type).inc()
    log.warning("operation.taken_back", extra={**freed.log_fields(), "lost": operation.claimed_by})
    after_commit.settle(freed)
    after_commit.forget_settled()
    look.conclude(freed, Category.TIMEOUT if timed_out else Category.POISON)
    return True


def _turn_back(operation: Operation, *, dead: str, timed_out: bool) -> Operation | None:
    """Let one that has lost its last attempt release what it has reserved, if it has."""
    job = jobs.find(operation.job_type)
    if job is None:
        return None
    category = Category.TIMEOUT if timed_out else Category.POISON
    failure = Failure(category=category, message=f"{operation.claimed_by} was lost in run {operation.runs}")
    return compensation.turn_back_lost(operation, job, failure, dead=dead, actor=dead or ACTOR)


def _pause_after(operation: Operation, *, timed_out: bool) -> float:
    """Run at once after the first lost worker; after more, it may be the operation that kills them."""
    losses = Transition.objects.filter(operation_id=operation.id, reason=Reason.WORKER_LOST)
    if not timed_out and not losses.exists():
        return 0.0
    return jittered(_backoff(operation.job_type).before(operation.attempt + 1))


def _backoff(job_type: str) -> jobs.Backoff:
    try:
        return jobs.get(job_type).retry
    except jobs.NoSuchJob:  # accepted by newer code than this relay's
        return jobs.Job.retry


def _end(operation: Operation) -> bool:
    if look.honour_cancel(operation, worker=ACTOR):  # asked for while a run was under way that was lost since
        after_commit.forget_settled()
        return True
    ended = look.end_late(operation, worker=ACTOR)
    after_commit.forget_settled()
    return ended


def _of_each(do: Callable[[Any], int], queues: Sequence[Any]) -> int:
    """Do it for every queue; one that does not answer keeps none of the others from their turn.

    Raises:
        BrokerAway: none of them answers.
    """
    done, away = [], None
    for each in queues:
        try:
            done.append(do(each))
        except BrokerAway as error:
            away = error
    if away is not None and not done:
        raise away
    return sum(done)


def _republish(job_type: str, due: int, long_ago: int) -> int:
    if not long_ago:
        return 0
    missing = min(due - publisher.depth(job_type), long_ago, settings.RELAY_BATCH)
    if missing <= 0:
        return 0
    values = {
        "batch": missing,
        "job_type": job_type,
        "age": settings.REPUBLISH_AFTER_SECONDS,
        "skip": jobs.skipping_the_dead(),
    }
    return _publish_all(statements.rows(MARK_LOST, values), "broker_loss")


def _publish_all(rows: Iterable[Sequence[object]], reason: str) -> int:
    operations = [from_row(row) for row in rows]
    if operations:
        crashpoint("relay.marked")
    sent = sum(publish(operation) for operation in operations)
    if sent:
        crashpoint("relay.published")
    metrics.REDISPATCHED.labels(reason).inc(sent)
    metrics.PUBLISHED.labels("ok").inc(sent)
    metrics.PUBLISHED.labels("error").inc(len(operations) - sent)
    return sent
