"""Hold the rows against the invariants: each check is a query that finds what must not be.

What SQL can't see is said, not skipped in silence. The checks mean most when nothing is running.
"""

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from django.apps import apps
from django.conf import settings
from django.utils.module_loading import module_has_submodule

from operations import deadlines, jobs, statements
from operations.deadlines import EFFECTIVE
from operations.effects import UNRESOLVED
from operations.models import DONE, Operation

MOST_SHOWN = 20  # rows of one violation that are listed
CLOCK_SLACK_SECONDS = 0.05  # between a due time in the row and the transition that tells of it

NOT_BY_SQL = {
    "I6": "whether the ledger equals the gateway is asked by `manage.py reconcile balance`",
    "I9": "how old a cached value was when it was served is not stored; work owed to the cache is checked",
    "I10": "a property of the others: empty the broker and the store, then check again",
    "I11": "exit codes are not stored; an interruption that cost an attempt is checked under I7",
    "I12": "search logs, broker and metrics for a canary secret",
    "I13": "give --accepted the ids that clients were answered",
}


class Violation(NamedTuple):
    """Rows that break an invariant."""

    invariant: str
    what: str
    rows: list[str]


class Check(NamedTuple):
    """A query whose first column names what breaks the invariant; no rows are good news."""

    invariant: str
    what: str
    sql: str


# `gave_back` says that a run ended with fewer attempts than it began with.
HISTORY = """
    WITH line AS (SELECT operation_id, from_status, to_status, reason, run, attempt, actor, at, id,
        lag(to_status) OVER line AS before, lag(at) OVER line AS before_at,
        lag(reason) OVER line AS before_reason, lag(actor) OVER line AS before_actor,
        lag(attempt) OVER line AS before_attempt, lead(id) OVER line AS next_id,
        from_status = 'processing' AND attempt < lag(attempt) OVER line AS gave_back
    FROM operations_transition WINDOW line AS (PARTITION BY operation_id ORDER BY id)),
    history AS (SELECT *, lag(gave_back) OVER (PARTITION BY operation_id ORDER BY id) AS before_gave_back
    FROM line)
"""

CHECKS = (
    Check(
        "I1",
        "an operation is neither final nor at work past its deadline",
        f"""SELECT id FROM operations_operation AS o WHERE status IN ('queued', 'retry_scheduled')
        AND deadline_at < clock_timestamp() - make_interval(secs => %(patience)s)
        AND {EFFECTIVE} < clock_timestamp() - make_interval(secs => %(patience)s)
        AND NOT {UNRESOLVED}""",  # noqa: S608
    ),
    Check(
        "I1",
        "a claim whose lease is long over was not taken back",
        """SELECT id FROM operations_operation WHERE status = 'processing'
        AND lease_expires_at < clock_timestamp() - make_interval(secs => %(patience)s)""",
    ),
    Check(
        "I1",
        "a failed operation has no dead letter that waits, or one that has not failed has",
        """SELECT o.id FROM operations_operation AS o
        LEFT JOIN operations_deadletter AS d ON d.operation_id = o.id AND d.resolution = 'waiting'
        WHERE (o.status = 'failed_permanent') <> (d.id IS NOT NULL)""",
    ),
    Check(
        "I2",
        "a step of an operation is recorded twice",
        """SELECT operation_id FROM operations_effect
        GROUP BY operation_id, step, generation HAVING count(*) > 1""",
    ),
    Check(
        "I2",
        "an operation is done although an effect of it may have been sent, and nobody knows",
        """SELECT o.id FROM operations_operation AS o JOIN operations_effect AS e
            ON e.operation_id = o.id AND e.certainty = 'maybe_sent'
        WHERE o.status IN ('succeeded', 'ignored')""",
    ),
    Check(
        "I2",
        "an effect was sent under another key than its own",
        """SELECT operation_id FROM operations_effect WHERE kind = 'outside'
        AND key <> operation_id::text || ':' || step || ':g' || generation""",
    ),
    Check(
        "I2",
        "a run that came too late has learned that an effect was done which is recorded as not done",
        """SELECT v.operation_id FROM operations_effectevidence AS v JOIN operations_effect AS e
            ON (e.operation_id, e.step, e.generation) = (v.operation_id, v.step, v.generation)
        WHERE v.certainty = 'confirmed' AND e.certainty IN ('not_sent', 'refused')""",
    ),
    Check(
        "I2",
        "an operation that has turned back has left something behind",
        """SELECT o.id FROM operations_operation AS o JOIN operations_effect AS e
            ON e.operation_id = o.id AND e.undone_at IS NULL AND e.certainty = 'confirmed'
        WHERE o.status = 'ignored' AND o.compensating_for <> ''""",
    ),
    Check(
        "I3",
        "a move is not one of the lifecycle's",
        """SELECT operation_id FROM history
        WHERE (from_status, to_status, reason) NOT IN (SELECT * FROM unnest(
            %(froms)s::text[], %(tos)s::text[], %(reasons)s::text[]))""",
    ),
    Check(
        "I3",
        "a move does not begin where the one before it ended",
        "SELECT operation_id FROM history WHERE from_status <> COALESCE(before, '')",
    ),
    Check(
        "I3",
        "a final status was left",
        "SELECT operation_id FROM history WHERE from_status = ANY(%(done)s)",
    ),
    Check(
        "I3",
        "an operation is not where its history ends",
        """SELECT o.id FROM operations_operation AS o
        LEFT JOIN history ON history.operation_id = o.id AND history.next_id IS NULL
        WHERE o.status IS DISTINCT FROM history.to_status""",
    ),
    Check(
        "I4",
        "a run was ended by another than the worker that held it",
        """SELECT operation_id FROM history
        WHERE from_status = 'processing' AND reason <> 'worker_lost' AND actor <> before_actor
            AND NOT (reason = 'compensation_failed' AND actor = 'relay')""",  # its last worker was lost
    ),
    Check(
        "I4",
        "a resource's applied version is not that of the operation that applied it",
        """SELECT f.resource FROM operations_resourcefence AS f
        JOIN operations_operation AS o ON o.id = f.applied_by  -- one that was purged can't be asked
        WHERE f.applied_version IS NOT NULL AND (o.status IS DISTINCT FROM 'succeeded'
            OR o.resource_version IS DISTINCT FROM f.applied_version OR o.resource <> f.resource)""",
    ),
    Check(
        "I5",
        "a key names an operation of another user, job or key",
        """SELECT o.id FROM operations_idempotencyrecord AS k
        JOIN operations_operation AS o ON o.id = k.operation_id
        WHERE (k.user_id, k.job_type, k.idempotency_key) <> (o.owner_id, o.job_type, o.idempotency_key)""",
    ),
    Check(
        "I5",
        "two operations share a user, job and key",
        """SELECT before FROM (
            SELECT o.id, lag(o.id) OVER same AS before, lag(o.finished_at) OVER same AS done_at,
                lag(o.status) OVER same AS status, o.created_at
            FROM operations_operation AS o WHERE o.idempotency_key <> ''
            WINDOW same AS (
                PARTITION BY o.owner_id, o.job_type, o.idempotency_key ORDER BY o.created_at, o.id)
        ) AS pair WHERE before IS NOT NULL AND (status NOT IN ('succeeded', 'ignored')
            OR done_at > created_at)""",
    ),
    Check(
        "I7",
        "an operation had another number of runs than its history tells",
        """SELECT o.id FROM operations_operation AS o LEFT JOIN operations_transition AS t
            ON t.operation_id = o.id AND t.to_status = 'processing'
        GROUP BY o.id HAVING count(t.id) <> o.runs""",
    ),
    Check(
        "I7",
        "an operation had more attempts than its job allows",
        "SELECT id FROM operations_operation WHERE attempt > max_attempts",
    ),
    Check(
        "I7",
        "an operation was begun more often than its attempts allow",
        # Not counted: look-ups, what was given back, and, for one that turned back, what it had before.
        """SELECT o.id FROM operations_operation AS o JOIN history AS t
            ON t.operation_id = o.id AND t.id > COALESCE((
                SELECT max(id) FROM operations_transition AS r
                WHERE r.operation_id = o.id AND r.reason IN ('replayed', 'reconciled')), 0)
        GROUP BY o.id HAVING
            count(*) FILTER (WHERE to_status = 'processing') - o.lookups - count(*) FILTER (WHERE gave_back)
            > o.max_attempts * CASE WHEN o.compensating_for = '' THEN 1 ELSE 2 END""",
    ),
    Check(
        "I7",
        "an attempt began before its pause was over",
        """SELECT operation_id FROM history
        JOIN operations_operation AS o ON o.id = operation_id
        JOIN unnest(%(types)s::text[], %(attempts)s::int[], %(pauses)s::float8[])
            AS p (job_type, attempt, pause)
            ON p.job_type = o.job_type AND p.attempt = before_attempt
        WHERE to_status = 'processing' AND before = 'retry_scheduled'
            AND before_reason IN ('dependency_unavailable', 'timeout', 'rate_limited', 'conflict')
            AND before_attempt > 0 AND history.attempt > before_attempt AND NOT before_gave_back
            AND at < before_at + make_interval(secs => p.pause - %(slack)s)""",
    ),
    Check(
        "I7",
        "an operation was handed back without an attempt more often than allowed",
        """SELECT id FROM operations_operation
        WHERE interruptions > %(most)s AND attempt = 0 AND runs > %(most)s""",
    ),
    Check(
        "I7",
        "a dependency is shut and its jobs are not held, or it is not and they are",
        """SELECT COALESCE(d.name, h.scope) FROM operations_dependency AS d
        FULL JOIN (SELECT * FROM operations_hold WHERE kind = 'breaker' AND ended_at IS NULL) AS h
            ON h.scope = 'dependency:' || d.name
        WHERE COALESCE(d.state IN ('closed', 'releasing'), true) <> (h.id IS NULL)""",
    ),
    Check(
        "I8",
        "an older version was applied after a newer one",
        """SELECT id FROM (SELECT o.id, resource_version,
            max(resource_version) OVER (PARTITION BY o.resource ORDER BY t.id
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS newest
        FROM operations_operation AS o JOIN operations_transition AS t
            ON t.operation_id = o.id AND t.to_status = 'succeeded'
        WHERE resource_version IS NOT NULL AND resource <> '') AS applied WHERE resource_version < newest""",
    ),
    Check(
        "I9",
        "work owed after a commit is long overdue",
        """SELECT COALESCE(operation_id::text, invalidate::text) FROM operations_aftercommit
        WHERE created_at < clock_timestamp() - make_interval(secs => %(patience)s)""",
    ),
)


def every_check() -> list[Check]:
    """Give the checks of operations, and those that apps name in a module `invariants`."""
    modules = [
        import_module(f"{app.name}.invariants")
        for app in apps.get_app_configs()
        if app.module is not None and module_has_submodule(app.module, "invariants")
    ]
    return [*CHECKS, *(Check(*check) for module in modules for check in module.CHECKS)]


def violations(accepted: Iterable[str] = ()) -> list[Violation]:
    """Give what breaks an invariant; `accepted` are ids that were answered with 202, which must exist."""
    values = _values()
    found = [(check, statements.rows(HISTORY + check.sql, values)) for check in every_check()]
    broken = [Violation(check.invariant, check.what, _named(rows)) for check, rows in found if rows]
    return broken + _missing(accepted)


def _missing(accepted: Iterable[str]) -> list[Violation]:
    ids = sorted(set(accepted))
    known = {str(id) for id in Operation.objects.filter(id__in=ids).values_list("id", flat=True)}
    missing = [id for id in ids if id not in known]
    return (
        [Violation("I1", "a client was answered 202 for an operation that does not exist", missing)]
        if missing
        else []
    )


def _named(rows: Sequence[tuple[Any, ...]]) -> list[str]:
    more = [f"and {len(rows) - MOST_SHOWN} more"] if len(rows) > MOST_SHOWN else []
    return [str(row[0]) for row in rows[:MOST_SHOWN]] + more


def _values() -> dict[str, Any]:
    moves = [(move.source, move.to, str(reason)) for move in Operation.MOVES for reason in move.reasons]
    pauses = [
        (job.name, attempt, float(job.retry.before(attempt + 1)))
        for job in jobs.every()
        for attempt in range(1, job.retry.attempts)
    ]
    return {
        **deadlines.values(),
        "patience": settings.LEASE_SECONDS + 3 * settings.RELAY_PERIOD_SECONDS,
        "froms": [str(move[0]) for move in moves],
        "tos": [str(move[1]) for move in moves],
        "reasons": [move[2] for move in moves],
        "done": [str(status) for status in DONE],
        "types": [pause[0] for pause in pauses],
        "attempts": [pause[1] for pause in pauses],
        "pauses": [pause[2] for pause in pauses],
        "slack": CLOCK_SLACK_SECONDS,
        "most": settings.MAX_INTERRUPTIONS,
    }
