"""Sample what belongs to no process: work that waits, and dead letters. A duty of every relay."""

import logging
import time
from collections import defaultdict
from collections.abc import Iterable
from itertools import product
from typing import NamedTuple

from django.db import OperationalError, connection, transaction
from psycopg.errors import QueryCanceled

from operations import jobs, metrics, statements
from operations.holds import HELD
from operations.models import DependencyState, Operation, Status

log = logging.getLogger(__name__)

PERIOD_SECONDS = 5.0  # between two samples: alerts think in minutes, a person at a dashboard in seconds
BOUND_SECONDS = 2.0  # for one count: a relay has better things to do than to count a table that has run away
STATES = (Status.QUEUED, Status.RETRY_SCHEDULED, Status.PROCESSING, "held")
REASONS = sorted({r for move in Operation.MOVES if move.to == Status.FAILED_PERMANENT for r in move.reasons})
UNKNOWN = "unknown"  # the label of jobs that are not in this code: labels are closed lists

# What is held counts as held, whatever its status, and does not wait for a worker.
COUNT_WORK = f"""
    SELECT job_type, CASE WHEN held AND status <> 'processing' THEN 'held' ELSE status END AS state,
        sum(number)::int, min(due_since) FILTER (WHERE NOT held)
    FROM (
        SELECT o.job_type, o.status, {HELD} AS held, count(*) AS number,
            extract(epoch FROM min(o.run_at) FILTER (
                WHERE o.status IN ('queued', 'retry_scheduled') AND o.run_at <= clock_timestamp()
            ))::float8 AS due_since
        FROM operations_operation AS o WHERE o.status IN ('queued', 'retry_scheduled', 'processing')
        GROUP BY o.job_type, o.status, held
    ) AS counted GROUP BY job_type, state"""  # noqa: S608 (only constants are put in)
BREAKERS = "SELECT name, state FROM operations_dependency"
COUNT_DEAD_LETTERS = """
    SELECT job_type, reason, count(*), extract(epoch FROM min(created_at))::float8
    FROM operations_deadletter WHERE resolution = 'waiting' AND NOT expected
    GROUP BY job_type, reason"""
COUNT_UNKNOWN = """
    SELECT o.job_type, '', count(DISTINCT o.id)::int, extract(epoch FROM min(e.first_sent_at))::float8
    FROM operations_effect AS e JOIN operations_operation AS o ON o.id = e.operation_id
    WHERE e.certainty = 'maybe_sent' GROUP BY o.job_type"""

_due_at = 0.0  # on this process's monotonic clock


class Counted(NamedTuple):
    """How many things share a job and a kind, and since when the oldest waits (Unix time)."""

    job_type: str
    kind: str
    number: int
    since: float | None


def sample() -> int:
    """Set the gauges, at most every PERIOD_SECONDS; touches no row, so gives 0. Opens a transaction.

    One sample sets every series: what is no longer there goes to 0. See Note [Gauges of shared state].
    """
    global _due_at
    if time.monotonic() < _due_at:
        return 0
    _due_at = time.monotonic() + PERIOD_SECONDS
    try:
        work, dead_letters, unknown = _count()
    except OperationalError as error:
        if not isinstance(error.__cause__, QueryCanceled):
            raise
        log.warning("gauges.not_sampled", extra={"bound_seconds": BOUND_SECONDS})
        return 0
    _show_work(work)
    _show_dead_letters(dead_letters)
    _show_unknown(unknown)
    _show_breakers()
    return 0


def _count() -> tuple[list[Counted], list[Counted], list[Counted]]:
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SELECT set_config('statement_timeout', %s, true)", [f"{BOUND_SECONDS}s"])
        return _counted(COUNT_WORK), _counted(COUNT_DEAD_LETTERS), _counted(COUNT_UNKNOWN)


def _counted(sql: str) -> list[Counted]:
    return [Counted(*row) for row in statements.rows(sql, {})]


def _show_work(counted: Iterable[Counted]) -> None:
    depths, oldest = _by_label(counted)
    for queue, state in product(_names(), STATES):
        metrics.QUEUE_DEPTH.labels(queue, state).set(depths[queue, state])
    for queue in _names():
        metrics.QUEUE_OLDEST_READY.labels(queue).set(oldest.get(queue, time.time()))


def _show_dead_letters(counted: Iterable[Counted]) -> None:
    depths, oldest = _by_label(counted)
    for job_type, reason in product(_names(), REASONS):
        metrics.DEAD_LETTERS.labels(job_type, reason).set(depths[job_type, reason])
    for job_type in _names():
        metrics.DEAD_LETTERS_OLDEST.labels(job_type).set(oldest.get(job_type, time.time()))


def _show_unknown(counted: Iterable[Counted]) -> None:
    """Show what nobody knows, by the dependency that was asked."""
    asked = {job.name: job.dependency or UNKNOWN for job in jobs.every()}
    numbers, oldest = _by_label([each._replace(kind="") for each in counted])
    for dependency in {*asked.values(), UNKNOWN}:
        names = [name for name in _names() if asked.get(name, UNKNOWN) == dependency]
        number = sum(numbers[name, ""] for name in names)
        since = min((oldest[name] for name in names if name in oldest), default=time.time())
        metrics.OUTCOME_UNKNOWN.labels(dependency).set(number)
        metrics.OUTCOME_UNKNOWN_OLDEST.labels(dependency).set(since)


def _show_breakers() -> None:
    """Show breakers that have a row: before its first failure a dependency has none."""
    for name, state in statements.rows(BREAKERS, {}):
        shown = state if state in DependencyState.values else DependencyState.HALF_OPEN
        for each in DependencyState.values:
            metrics.BREAKER_STATE.labels(name, each).set(each == shown)


def _by_label(counted: Iterable[Counted]) -> tuple[dict[tuple[str, str], int], dict[str, float]]:
    """Add up by job and kind, and find the oldest of each job."""
    depths: dict[tuple[str, str], int] = defaultdict(int)
    oldest: dict[str, float] = {}
    for each in counted:
        name = each.job_type if each.job_type in _names() else UNKNOWN
        depths[name, each.kind] += each.number
        if each.since is not None:
            oldest[name] = min(each.since, oldest.get(name, each.since))
    return depths, oldest


def _names() -> list[str]:
    return [*(job.name for job in jobs.every()), UNKNOWN]
