"""Take waiting operations by the handful when a worker has fallen behind: no message is needed for each.

See Note [Hints enough] in operations/publish.py. What is taken is run exactly as if a message had named it,
one after the other and each with its own claim; taking only says to the relay that a hint has been given.
"""

import time
from collections.abc import Iterator

from operations import jobs, lifecycle, statements
from operations.arrows import SELECTED
from operations.holds import FREE_TYPES, NOT_HELD
from operations.jobs import Job
from operations.lifecycle import Glance
from operations.models import Operation
from operations.order import NOT_BLOCKED
from operations.publish import publish, publisher
from tasks import drain

BEHIND_SECONDS = 0.05  # an operation that waited longer than this for its start tells of a backlog
HANDFUL = 20
LONGEST_SECONDS = 1.0  # for one message: other queues have messages too, and Celery's clock of limits runs on

# One index range a job type, so that what is held is not even looked at.
MARK = f"""
    UPDATE operations_operation SET published_at = clock_timestamp()
    WHERE id = ANY(ARRAY(  -- in IN it might be asked for each row, and the limit be each row's
        SELECT found.id FROM unnest({FREE_TYPES}) AS kind (job_type) CROSS JOIN LATERAL (
            SELECT o.id, {{by}} AS rank FROM operations_operation AS o
            WHERE o.job_type = kind.job_type AND o.status IN ('queued', 'retry_scheduled')
                AND o.run_at <= clock_timestamp() AND {{which}} AND {NOT_BLOCKED} AND {NOT_HELD}
            ORDER BY {{by}} LIMIT %(batch)s FOR NO KEY UPDATE SKIP LOCKED) AS found
        ORDER BY found.rank LIMIT %(batch)s))
    RETURNING {SELECTED}"""  # noqa: S608 (only constants are put in)
MARK_UNSENT = MARK.format(which="o.job_type = %(job_type)s AND o.published_at IS NULL", by="o.run_at")
TAKE = f"WITH marked AS ({MARK_UNSENT}) {lifecycle.GLANCED.format(rows='marked')}"


def waiting(job: Job, *, began: float) -> Iterator[Glance]:
    """Give due operations of `job` for which no message was sent, until there are none or it is time to stop.

    `began` (time.monotonic()) is when the message's task did: its limits run from there. What was taken and
    cannot be given any more is published instead.
    """
    stop_at = began + min(LONGEST_SECONDS, (job.hard_limit - job.soft_limit) / 2)

    def is_over() -> bool:
        return drain.begun() or time.monotonic() >= stop_at

    handful: list[Glance] = []
    try:
        while not is_over() and (handful := _take(job.name)):
            while handful and not is_over():
                yield handful.pop(0)
    finally:  # also if a run of them has failed
        if handful:
            _give_back(job, [glance.operation for glance in handful])


def _give_back(job: Job, operations: list[Operation]) -> None:
    """Publish what was taken and not begun, unless that adds to plenty: then it waits as it did before."""
    if publisher.has_plenty(job.name):
        Operation.objects.filter(id__in=[operation.id for operation in operations]).update(published_at=None)
        return
    for operation in operations:
        publish(operation)


def _take(job_type: str) -> list[Glance]:
    """Mark and look in one statement. A claim decides by itself whether what was seen still is so."""
    skip = jobs.skipping_the_dead()
    values = {"job_type": job_type, "batch": HANDFUL, "skip": skip, "released": []}
    return [lifecycle.glance(row) for row in statements.rows(TAKE, values)]
