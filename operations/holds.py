"""Holds: work that is not handed out on purpose. What accept, claim, relay, API and admin ask about them.

A hold is a fact about job types or an owner, never about rows: opening one writes no operation.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from operations import statements
from operations.models import WAITING, Hold, HoldKind, Operation

# Note [A hold lets pass what names it]
# An open hold stops every claim it covers, except those whose message names its id. Only the relay writes
# such messages: for a breaker's one probe, and for what a hold with a rate lets through. So a message from
# before a hold, or from before a breaker's last opening, carries an old id or none, and is acknowledged; the
# row stays as it was, and whoever releases it sends another.

COVERS = """h.kind <> 'refuse' AND (cardinality(h.job_types) = 0 OR o.job_type = ANY(h.job_types))
    AND (h.owner_id IS NULL OR h.owner_id = o.owner_id)"""
HELD = f"EXISTS (SELECT FROM operations_hold AS h WHERE h.ended_at IS NULL AND {COVERS})"
NOT_HELD = f"NOT {HELD}"

# For whom a message was sent: `released` are the ids it names.
LET_THROUGH = f"""NOT EXISTS (
    SELECT FROM operations_hold AS h
    WHERE h.ended_at IS NULL AND {COVERS} AND h.id <> ALL(%(released)s::bigint[]))"""

# A new operation is not a row yet.
_NEW = "(SELECT %(job_type)s::varchar AS job_type, %(owner_id)s::bigint AS owner_id) AS o"
NEW_IS_HELD = f"""EXISTS (
    SELECT FROM operations_hold AS h, {_NEW} WHERE h.ended_at IS NULL AND {COVERS})"""
NEW_IS_REFUSED = f"""EXISTS (
    SELECT FROM operations_hold AS h, {_NEW}
    WHERE h.ended_at IS NULL AND h.kind = 'refuse' AND {COVERS.replace("h.kind <> 'refuse' AND ", "")})"""

# The job types of waiting rows, a step in the index for each; then without those that are held as a whole.
# So a held backlog costs the relay as much as an empty one.
WAITING_TYPES = """
    WITH RECURSIVE kinds AS (
        (SELECT job_type FROM operations_operation WHERE status IN ('queued', 'retry_scheduled')
         ORDER BY job_type LIMIT 1)
        UNION ALL
        SELECT (SELECT w.job_type FROM operations_operation AS w
                WHERE w.status IN ('queued', 'retry_scheduled') AND w.job_type > kinds.job_type
                ORDER BY w.job_type LIMIT 1)
        FROM kinds WHERE kinds.job_type IS NOT NULL)
    SELECT kinds.job_type FROM kinds WHERE kinds.job_type IS NOT NULL"""
FREE_TYPES = f"""ARRAY({WAITING_TYPES} AND NOT EXISTS (
    SELECT FROM operations_hold AS h WHERE h.ended_at IS NULL AND h.kind <> 'refuse' AND h.owner_id IS NULL
        AND (cardinality(h.job_types) = 0 OR kinds.job_type = ANY(h.job_types))))"""

# The hold that an operation waits under; of several, one that lets nothing pass.
HOLD_ID = f"""(
    SELECT h.id FROM operations_hold AS h
    WHERE o.status IN ('queued', 'retry_scheduled') AND h.ended_at IS NULL AND {COVERS}
    ORDER BY h.per_second, h.id LIMIT 1)"""  # noqa: S608


def waiting_types() -> list[str]:
    """Name the job types of which anything waits."""
    return [str(row[0]) for row in statements.rows(WAITING_TYPES, {})]


def refuses(job_type: str, *, owner_id: int) -> bool:
    """Say whether new requests of this kind are turned away."""
    row = statements.row(f"SELECT {NEW_IS_REFUSED}", {"job_type": job_type, "owner_id": owner_id})
    return row is not None and bool(row[0])


def over(operation: Operation) -> Hold | None:
    """Give the hold that an operation waits under, if any. Asks the database, unless somebody has."""
    if operation.status not in WAITING or operation.hold_id is None:
        return None
    if operation.hold is None:
        hold_id = _hold_id(operation) if operation.hold_id == Operation.NOT_ASKED else operation.hold_id
        operation.hold_id = hold_id
        operation.hold = None if hold_id is None else Hold.objects.filter(id=hold_id).first()
    return operation.hold


def look_over(operations: Iterable[Operation]) -> None:
    """Find the holds of many operations at once, for a list: one query, however many there are."""
    holds = sorted(open_now().exclude(kind=HoldKind.REFUSE), key=lambda hold: (hold.per_second, hold.id))
    for operation in operations:
        operation.hold = next((hold for hold in holds if _covers(hold, operation)), None)
        operation.hold_id = None if operation.hold is None else operation.hold.id


def sentence(hold: Hold) -> str:
    """Say in words what a hold makes wait, and until when, for whoever looks at a waiting row."""
    match hold.kind:
        case HoldKind.BREAKER:
            return f"held: {_of_breaker(hold)}"
        case HoldKind.RELEASE:
            since, pace = _clock(hold.began_at), f"{hold.per_second:g} a second"
            return f"held: dependency {dependency_of(hold)} answers again since {since}, released at {pace}"
        case HoldKind.RATE:
            return f"held: at most {hold.per_second * 60:g} a minute, set by {hold.actor}: {hold.reason}"
        case HoldKind.REFUSE:
            return f"refused by {hold.actor}: {hold.reason}"
        case _:
            return f"held: paused by {hold.actor}: {hold.reason}"


def dependency_of(hold: Hold) -> str:
    return hold.scope.removeprefix("dependency:")


def open_now() -> Any:
    """Give the holds that are open, the oldest first."""
    return Hold.objects.filter(ended_at=None).order_by("id")


def _hold_id(operation: Operation) -> int | None:
    sql = f"SELECT {HOLD_ID} FROM operations_operation AS o WHERE o.id = %(id)s"  # noqa: S608
    row = statements.row(sql, {"id": operation.id})
    return None if row is None else row[0]


def _covers(hold: Hold, operation: Operation) -> bool:
    """Say what COVERS says."""
    whose = hold.owner_id in (None, operation.owner_id)
    return whose and (not hold.job_types or operation.job_type in hold.job_types)


def _of_breaker(hold: Hold) -> str:
    found = hold.dependency
    since = f"dependency {dependency_of(hold)} open since {_clock(hold.began_at)}"
    if found is None or found.probe_at is None:
        return since
    return f"{since}, being probed" if found.probe_token else f"{since}, probe {_clock(found.probe_at)}"


def _clock(at: datetime) -> str:
    return f"{at:%H:%M}"
