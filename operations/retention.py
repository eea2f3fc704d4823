"""Forget what was kept long enough: keys that are over, and operations that were done long ago.

Both are walked through in portions by the primary key, from the oldest on and then from the beginning again,
so that what must be kept costs one look in a walk and no index. Each portion is one short statement that
leaves alone whatever is locked.
"""

import time
import uuid
from datetime import timedelta
from typing import Any

from django.conf import settings

from operations import jobs, metrics, statements
from operations.keys import LIVES

PORTION = 500  # rows that a statement looks at, and may delete: some ten milliseconds
REST_SECONDS = 60.0  # from the end of a walk to the next one's beginning

# Locked first, judged after: a key that is taken over at this moment names another operation when it is free.
PURGE_KEYS = f"""
    WITH portion AS (
        SELECT id FROM operations_idempotencyrecord WHERE id > %(after)s ORDER BY id LIMIT %(portion)s
    ), ended AS (
        SELECT k.id FROM operations_idempotencyrecord AS k
        JOIN portion ON portion.id = k.id JOIN operations_operation AS o ON o.id = k.operation_id
        JOIN unnest(%(job_types)s::text[], %(ttls)s::interval[]) AS contract (job_type, ttl)
            ON contract.job_type = k.job_type
        WHERE NOT {LIVES.format(ttl="contract.ttl")}
        FOR UPDATE OF k SKIP LOCKED
    ), gone AS (
        DELETE FROM operations_idempotencyrecord AS k USING ended WHERE k.id = ended.id RETURNING k.id
    )
    SELECT (SELECT count(*) FROM portion), (SELECT max(id) FROM portion), (SELECT count(*) FROM gone)"""  # noqa: S608 (only constants are put in)

# UUIDv7 sorts by time, near enough to walk by. What decides is the database's clock.
PURGE_OPERATIONS = """
    WITH portion AS (
        SELECT id FROM operations_operation
        WHERE id > %(after)s AND id < %(until)s ORDER BY id LIMIT %(portion)s
    ), ended AS (
        SELECT o.id FROM operations_operation AS o JOIN portion ON portion.id = o.id
        WHERE o.status IN ('succeeded', 'ignored') AND o.finished_at < clock_timestamp() - %(kept)s::interval
            AND NOT EXISTS (SELECT FROM operations_idempotencyrecord AS k WHERE k.operation_id = o.id)
            AND NOT EXISTS (SELECT FROM operations_aftercommit AS a WHERE a.operation_id = o.id)
            AND (o.resource_seq IS NULL OR NOT EXISTS (  -- it tells that the other was overtaken
                SELECT FROM operations_operation AS before
                WHERE before.resource = o.resource AND before.resource_seq < o.resource_seq
                    AND before.status NOT IN ('succeeded', 'ignored')))
        FOR UPDATE OF o SKIP LOCKED
    ), data AS (
        DELETE FROM operations_operationdata AS d USING ended WHERE d.operation_id = ended.id
    ), effects AS (
        DELETE FROM operations_effect AS e USING ended WHERE e.operation_id = ended.id
    ), evidence AS (
        DELETE FROM operations_effectevidence AS e USING ended WHERE e.operation_id = ended.id
    ), letters AS (
        DELETE FROM operations_deadletter AS d USING ended WHERE d.operation_id = ended.id
    ), history AS (
        DELETE FROM operations_transition AS t USING ended WHERE t.operation_id = ended.id
    ), gone AS (
        DELETE FROM operations_operation AS o USING ended WHERE o.id = ended.id RETURNING o.id
    )
    SELECT (SELECT count(*) FROM portion), (SELECT max(id::text)::uuid FROM portion),
        (SELECT count(*) FROM gone)"""


class Walk:
    """Where one relay is in a table."""

    def __init__(self, sql: str, beginning: Any) -> None:
        """Begin at the first row."""
        self._sql, self._beginning = sql, beginning
        self.begin()

    def begin(self) -> None:
        """Go back to the first row, and look at it at once."""
        self._after = self._beginning
        self._rests_until = 0.0

    def on(self, **values: Any) -> int:
        """Look at the next portion, delete what may go, and say how many; at the end, rest."""
        if time.monotonic() < self._rests_until:
            return 0
        [(seen, last, gone)] = statements.rows(
            self._sql, {**values, "after": self._after, "portion": PORTION}
        )
        self._after = last
        if seen < PORTION:
            self.begin()
            self._rests_until = time.monotonic() + REST_SECONDS
        return int(gone)


_keys = Walk(PURGE_KEYS, beginning=0)
_operations = Walk(PURGE_OPERATIONS, beginning=uuid.UUID(int=0))


def purge_keys() -> int:
    """Delete records of keys that are over; those of jobs that this code does not know are left alone."""
    contracts = [(job.name, job.key_ttl) for job in jobs.every()]
    names, ttls = [name for name, _ in contracts], [ttl for _, ttl in contracts]
    gone = _keys.on(job_types=names, ttls=ttls)
    metrics.KEYS_PRUNED.inc(gone)
    return gone


def purge_operations() -> int:
    """Delete operations done OPERATION_DAYS ago, with all that was written about them but the audit."""
    kept = timedelta(days=settings.OPERATION_DAYS)
    return _operations.on(kept=kept, until=_oldest_id(time.time() - kept.total_seconds()))


def begin_again() -> None:
    """Begin both walks at once, as for a test."""
    _keys.begin()
    _operations.begin()


def _oldest_id(unix_seconds: float) -> uuid.UUID:
    """Give the least UUIDv7 of that moment. Source: RFC 9562, section 5.7."""
    return uuid.UUID(int=int(unix_seconds * 1000) << 80)
