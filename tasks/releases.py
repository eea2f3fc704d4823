"""What passes a hold: a breaker's one probe, and what a rate lets through, oldest first. The relay's part.

See Note [A hold lets pass what names it].
"""

import logging
from typing import Any

from django.conf import settings

from operations import dependencies, holds, jobs, metrics, statements
from operations.arrows import COLUMNS, SELECTED, from_row
from operations.holds import COVERS
from operations.models import Dependency, Hold, HoldKind
from operations.order import NOT_BLOCKED
from operations.publish import publish, publisher

log = logging.getLogger(__name__)

TICK_SECONDS = 0.1  # between two portions: a second's worth at once would be a burst
BURST_SECONDS = 2 * TICK_SECONDS  # what a rate may make up for after a pause of the relay

# Nothing but this hold is over it, or other rates that let more through: the slowest one doles it out.
_MINE = f"""NOT EXISTS (
    SELECT FROM operations_hold AS h WHERE h.ended_at IS NULL AND {COVERS} AND h.id <> %(hold)s
        AND (h.per_second = 0 OR (h.per_second, h.id) < (%(per_second)s::float8, %(hold)s::bigint)))"""
# Never sent, sent before the hold began, or lost since.
_UNSENT = """(o.published_at IS NULL OR o.published_at < %(began_at)s
    OR o.published_at < clock_timestamp() - make_interval(secs => %(age)s))"""
# One index range a job type, each in the order of its due times.
MARK = f"""
    UPDATE operations_operation AS o SET published_at = clock_timestamp()
    WHERE id = ANY(ARRAY(  -- in IN it might be asked for each row, and the limit be each row's
        SELECT found.id FROM unnest(%(types)s::text[]) AS kind (job_type) CROSS JOIN LATERAL (
            SELECT o.id, o.run_at FROM operations_operation AS o
            WHERE o.job_type = kind.job_type AND o.status IN ('queued', 'retry_scheduled')
                AND o.run_at <= clock_timestamp() AND (%(owner)s::bigint IS NULL OR o.owner_id = %(owner)s)
                AND ({{which}}) AND {NOT_BLOCKED} AND {_MINE}
            ORDER BY o.run_at LIMIT %(batch)s FOR NO KEY UPDATE SKIP LOCKED) AS found
        ORDER BY found.run_at LIMIT %(batch)s))
    RETURNING {SELECTED}, ARRAY(
        SELECT h.id FROM operations_hold AS h
        WHERE h.ended_at IS NULL AND {COVERS} AND (h.per_second > 0 OR h.id = %(hold)s))"""  # noqa: S608
MARK_UNSENT = MARK.format(which=_UNSENT)
MARK_PROBE = MARK.format(which="true")

# Take what the rate has saved up, whole operations only; two relays never take the same.
TAKE_PORTION = """
    WITH saved AS (
        SELECT id, GREATEST(paced_until, clock_timestamp()
            - make_interval(secs => GREATEST(%(burst)s::float8, 1 / %(pace)s::float8))) AS paced_until
        FROM operations_hold WHERE id = %(hold)s AND ended_at IS NULL AND per_second > 0 FOR NO KEY UPDATE
    ), portion AS (
        SELECT *, LEAST(%(most)s, floor(0.000001
            + extract(epoch FROM clock_timestamp() - paced_until)::float8 * %(pace)s))::int AS size
        FROM saved
    )
    UPDATE operations_hold AS h
    SET paced_until = p.paced_until + make_interval(secs => p.size / %(pace)s)
    FROM portion AS p WHERE h.id = p.id AND p.size > 0
    RETURNING p.size"""
KEEP_HELD = """
    INSERT INTO operations_hold AS h
        (scope, kind, job_types, began_at, per_second, paced_until, reason, actor)
    SELECT 'dependency:' || name, 'breaker', %(job_types)s::text[], clock_timestamp(), 0,
        clock_timestamp(), '', 'relay'
    FROM operations_dependency WHERE name = %(name)s AND state NOT IN ('closed', 'releasing')
    FOR NO KEY UPDATE
    ON CONFLICT (scope, kind) WHERE ended_at IS NULL DO UPDATE SET job_types = ARRAY(
        SELECT DISTINCT unnest(h.job_types || excluded.job_types) ORDER BY 1)
    WHERE NOT h.job_types @> excluded.job_types
    RETURNING id"""
# Something due was not sent, whatever else it is held by.
LEFT = f"""
    SELECT EXISTS (SELECT FROM operations_operation AS o
        WHERE o.job_type = ANY(%(types)s) AND o.status IN ('queued', 'retry_scheduled')
            AND o.run_at <= clock_timestamp() AND o.published_at IS NULL AND {NOT_BLOCKED})"""  # noqa: S608


def probe() -> int:
    """Send the oldest operation behind each breaker that is due for a probe; its worker makes sure of it."""
    for name in dependencies.fail_lost_probes():
        log.warning("breaker.probe_lost", extra={"dependency": name})
    return sum(_probe(shut) for shut in dependencies.shut())


def release() -> int:
    """Let pass what every rate allows by now."""
    return sum(_release(hold) for hold in holds.open_now().filter(per_second__gt=0))


def going_on() -> bool:
    """Say whether any rate has to be doled out."""
    return bool(holds.open_now().filter(per_second__gt=0).exists())


def _probe(shut: Dependency) -> int:
    """A type that is new in this code is held with the others from now on."""
    statements.rows(KEEP_HELD, {"name": shut.name, "job_types": jobs.depending_on(shut.name)})
    hold = holds.open_now().filter(scope=f"dependency:{shut.name}", kind=HoldKind.BREAKER).first()
    if hold is None or shut.probe_token is not None or not _is_due(shut):
        return 0
    return _send(MARK_PROBE, hold, 1, probe=True)


def _is_due(shut: Dependency) -> bool:
    due = "SELECT probe_at <= clock_timestamp() FROM operations_dependency WHERE name = %(name)s"
    row = statements.row(due, {"name": shut.name})
    return row is not None and bool(row[0])


def _release(hold: Hold) -> int:
    room = _room(hold)
    values = {
        "hold": hold.id,
        "pace": _pace(hold),
        "burst": BURST_SECONDS,
        "most": min(room, settings.RELAY_BATCH),
    }
    portion = statements.row(TAKE_PORTION, values) if room > 0 else None
    if portion is None:
        return 0
    sent = _send(MARK_UNSENT, hold, portion[0])
    if hold.kind == HoldKind.RELEASE and not sent and not _is_any_left(hold):
        _end(hold)
    return sent


def _is_any_left(hold: Hold) -> bool:
    """Say whether more is to be released: the broker may have been away, or another hold is over it."""
    row = statements.row(LEFT, {"types": hold.job_types, "skip": jobs.skipping_the_dead()})
    return row is not None and bool(row[0])


def _pace(hold: Hold) -> float:
    """Give how many pass a second. For a dependency the rate is a ceiling of each second, bursts included."""
    return hold.per_second * (1 - BURST_SECONDS if hold.kind == HoldKind.RELEASE else 1)


def _room(hold: Hold) -> int:
    """Give how many more messages may wait in the broker: what piles up there would pass all at once."""
    waiting = sum(publisher.depth(job_type) for job_type in hold.job_types)
    return max(1, int(hold.per_second * BURST_SECONDS)) - waiting


def _send(mark: str, hold: Hold, size: int, **headers: Any) -> int:
    values = {
        "types": hold.job_types or holds.waiting_types(),
        "owner": hold.owner_id,
        "hold": hold.id,
        "per_second": hold.per_second,
        "began_at": hold.began_at,
        "age": settings.REPUBLISH_AFTER_SECONDS,
        "batch": size,
        "skip": jobs.skipping_the_dead(),
    }
    rows = statements.rows(mark, values)
    released = [(from_row(row), list(row[len(COLUMNS)])) for row in rows]
    released.sort(key=lambda each: each[0].run_at)
    sent = sum(publish(operation, released=ids, **headers) for operation, ids in released)
    metrics.REDISPATCHED.labels("released").inc(sent)
    return sent


def _end(hold: Hold) -> None:
    name = holds.dependency_of(hold)
    if dependencies.released(name):
        metrics.BREAKER_TRANSITIONS.labels(name, "closed").inc()
        log.warning("breaker.closed", extra={"dependency": name})
