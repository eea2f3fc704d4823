"""Deploys take a while, and code and work don't change together: see to operations that no live worker knows.

Duties of every relay, like those in tasks/relay.py. A message for a job that its worker does not know is
acknowledged, so what becomes of the operation is seen to here, whatever messages there are.
"""

import logging

from django.conf import settings

from operations import lifecycle, statements
from operations.arrows import SELECTED, from_row
from operations.lifecycle import LIVE, UNKNOWN_TYPE
from operations.models import Category, Operation, Status
from tasks import after_commit, look

log = logging.getLogger(__name__)

ACTOR = "relay"

# The jobs of what waits are found by hops through the index (job_type, run_at): a backlog has many rows of a
# few jobs. Source: https://wiki.postgresql.org/wiki/Loose_indexscan
UNKNOWN = f"""
    WITH RECURSIVE waiting (job_type) AS (
        (SELECT job_type FROM operations_operation WHERE status IN ('queued', 'retry_scheduled')
         ORDER BY job_type LIMIT 1)
        UNION ALL
        SELECT (SELECT o.job_type FROM operations_operation AS o
                WHERE o.status IN ('queued', 'retry_scheduled') AND o.job_type > waiting.job_type
                ORDER BY o.job_type LIMIT 1)
        FROM waiting WHERE waiting.job_type IS NOT NULL)
    SELECT {SELECTED} FROM operations_operation
    WHERE status IN ('queued', 'retry_scheduled') AND run_at <= clock_timestamp() AND job_type IN (
        SELECT o.job_type FROM waiting AS o WHERE {UNKNOWN_TYPE})
    LIMIT %(batch)s"""  # noqa: S608 (only constants are put in)
KNOWN = f"""
    SELECT DISTINCT jsonb_array_elements_text(job_types) FROM operations_workernode AS w
    WHERE {LIVE}"""  # noqa: S608
RELEASE = f"""
    UPDATE operations_operation
    SET run_at = LEAST(run_at, clock_timestamp()), waiting_for = '', version = version + 1
    WHERE id = ANY(ARRAY(  -- in IN it might be asked for each row, and the limit be each row's
        SELECT id FROM operations_operation
        WHERE status = 'retry_scheduled' AND job_type = ANY(%(known)s) AND reason = 'unknown_job_type'
            AND run_at > clock_timestamp()
        LIMIT %(batch)s FOR NO KEY UPDATE SKIP LOCKED))
    RETURNING {SELECTED}"""  # noqa: S608

_known: frozenset[str] = frozenset()  # the jobs of live workers for which nothing is set aside


def set_aside_unknown() -> int:
    """Set operations aside whose job no live worker knows; bury those that have waited long for one."""
    global _known
    values = {**lifecycle.judging_types(), "batch": settings.RELAY_BATCH}
    rows = statements.rows(UNKNOWN, values)
    moved = sum(_set_aside(from_row(row)) for row in rows)
    if moved:
        _known = frozenset()
    return moved


def release_known() -> int:
    """Make operations due that were set aside, once a live worker knows their job.

    Their rows are in no index of their own, so they are looked for only when a job has become known.
    """
    global _known
    live = statements.rows(KNOWN, {"silence": settings.NODE_SILENCE_SECONDS})
    known = frozenset(job_type for (job_type,) in live)
    wanted = {"known": sorted(known - _known), "batch": settings.RELAY_BATCH}
    released = [from_row(row) for row in statements.rows(RELEASE, wanted)] if known - _known else []
    if len(released) < settings.RELAY_BATCH:
        _known = known
    for operation in released:
        log.info("operation.job_known", extra=operation.log_fields())
    return len(released)


def _set_aside(operation: Operation) -> bool:
    moved = lifecycle.set_aside(operation, actor=ACTOR)
    if moved is None:
        return False
    if moved.status == Status.FAILED_PERMANENT:
        after_commit.settle(moved)
        look.conclude(moved, Category.BUG)
    else:
        log.warning("operation.job_unknown", extra=moved.log_fields())
    return True
