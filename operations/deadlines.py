"""Until when an operation may still begin: its deadline, put off by the time in which it was not let.

One SQL expression says so everywhere. It asks about pauses only once `deadline_at` has passed.
"""

from datetime import datetime
from typing import Any

from django.conf import settings

from operations import jobs, statements
from operations.effects import UNRESOLVED
from operations.holds import COVERS
from operations.models import Operation

# When the deadline began to run: at the acceptance, or at the last replay, which sets a new one.
_BEGAN = """GREATEST(o.created_at, (
        SELECT max(own.replayed_at) FROM operations_deadletter AS own WHERE own.operation_id = o.id))"""

# While one before it in line lay dead, or work of its kind was held on purpose, it could not run. Each such
# time is one row (`since`, `until`) here.
_PAUSES = f"""
    SELECT dead.created_at AS since, COALESCE(dead.replayed_at, dead.resolved_at, clock_timestamp()) AS until
    FROM operations_deadletter AS dead
    WHERE dead.resource = o.resource AND dead.resource_seq < o.resource_seq
        AND NOT o.job_type = ANY(%(skip)s)
    UNION ALL
    SELECT h.began_at, COALESCE(h.ended_at, clock_timestamp()) FROM operations_hold AS h
    WHERE {COVERS} AND COALESCE(h.ended_at, clock_timestamp()) > o.created_at"""  # noqa: S608

# Pauses that overlap count once. A clock that was set back may have ended one before it began.
_PAUSED = f"""(
    SELECT sum(upper(pause) - lower(pause)) FROM unnest((
        SELECT range_agg(tstzrange(GREATEST(since, began), GREATEST(since, until, began)))
        FROM ({_PAUSES}) AS pauses, LATERAL (SELECT {_BEGAN} AS began) AS deadline)) AS pause)"""  # noqa: S608

EFFECTIVE = f"(o.deadline_at + LEAST(%(longest_extension)s, COALESCE({_PAUSED}, interval '0')))"

# For rows of operations_operation AS o. The values that it needs are those of `values`. One whose outcome is
# unknown is looked up, however late it is.
PASSED = f"(o.deadline_at <= clock_timestamp() AND {EFFECTIVE} <= clock_timestamp() AND NOT {UNRESOLVED})"


def values() -> dict[str, Any]:
    """Give what the expressions need: which jobs skip the dead, and the most a deadline is put off."""
    return {"skip": jobs.skipping_the_dead(), "longest_extension": settings.MAX_DEADLINE_EXTENSION}


def have_passed(operation: Operation) -> bool:
    """Say whether one whose `deadline_at` has passed is not put off."""
    sql = f"SELECT {PASSED} FROM operations_operation AS o WHERE o.id = %(id)s"  # noqa: S608
    row = statements.row(sql, {"id": operation.id, **values()})
    return row is None or bool(row[0])


def effective(operation: Operation) -> datetime:
    """Give the deadline that counts as of now."""
    sql = f"SELECT {EFFECTIVE} FROM operations_operation AS o WHERE o.id = %(id)s"  # noqa: S608
    row = statements.row(sql, {"id": operation.id, **values()})
    return operation.deadline_at if row is None else row[0]
