"""The line of a resource: what an ordered operation waits for, and what has overtaken it."""

from uuid import UUID

from operations import jobs, statements
from operations.models import WAITING, Operation

# What an ordered operation waits for: one before it in line that is not done. A dead one counts, unless its
# job skips the dead. The open rows of a resource are few, and in an index of their own.
AHEAD = """
    FROM operations_operation AS ahead
    WHERE ahead.resource = o.resource AND ahead.resource <> '' AND ahead.resource_seq < o.resource_seq
        AND ahead.status NOT IN ('succeeded', 'ignored')
        AND (ahead.status <> 'failed_permanent' OR NOT o.job_type = ANY(%(skip)s))"""
NOT_BLOCKED = f"(o.resource_seq IS NULL OR NOT EXISTS (SELECT {AHEAD}))"

# The first of them, where it is asked of many rows or of one.
BLOCKED_BY = f"""CASE WHEN o.resource_seq IS NOT NULL AND o.status IN ('queued', 'retry_scheduled')
    THEN (SELECT ahead.id {AHEAD} ORDER BY ahead.resource_seq LIMIT 1) END"""
HEAD = f"""
    SELECT head.id FROM operations_operation AS o
    CROSS JOIN LATERAL (SELECT ahead.id {AHEAD} ORDER BY ahead.resource_seq LIMIT 1) AS head
    WHERE o.id = %(id)s"""  # noqa: S608


def blocked_by(operation: Operation) -> UUID | None:
    """Give the first operation in the line that a waiting, ordered one has to wait for, if it has to.

    Asks the database, unless somebody has.
    """
    if operation.blocked_by_id != Operation.NOT_ASKED:
        return operation.blocked_by_id
    if operation.resource_seq is None or operation.status not in WAITING:
        return None
    row = statements.row(HEAD, {"id": operation.id, "skip": jobs.skipping_the_dead()})
    return None if row is None else row[0]


# Note [The line stands still]
# A replay looks that nobody behind has begun, and a claim that skips the dead, that nobody before waits. Each
# reads what the other writes, in another row, so both could be right and both be done. So both first take the
# resource's line, and look in a statement that begins after it.

STAND_STILL = "SELECT pg_advisory_xact_lock(hashtextextended(%(resource)s::text, 0))"


def stand_still(resource: str) -> None:
    """Let nobody else replay or overtake in the line of `resource` until the end of the transaction it is in.

    Raises:
        django.db.OperationalError: another held it for longer than LOCK_TIMEOUT_MS.
    """
    statements.row(STAND_STILL, {"resource": resource})


# One behind an ordered operation that is done, or at it: only jobs that skip the dead let it come to that.
OVERTAKING = """
    FROM operations_operation AS later
    WHERE later.resource = o.resource AND later.resource_seq > o.resource_seq
        AND later.status IN ('succeeded', 'processing')"""
OVERTAKEN = f"""
    SELECT later.id FROM operations_operation AS o
    CROSS JOIN LATERAL (SELECT later.id {OVERTAKING} ORDER BY later.resource_seq LIMIT 1) AS later
    WHERE o.id = %(id)s"""  # noqa: S608


def overtaken_by(operation: Operation) -> UUID | None:
    """Give an operation behind this ordered one that is done, or at it: then this one's turn is over."""
    if operation.resource_seq is None:
        return None
    row = statements.row(OVERTAKEN, {"id": operation.id})
    return None if row is None else row[0]
