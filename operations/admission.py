"""Whether the service takes more work just now: from this user, and for this job.

Both are asked of the database at most every few seconds, and believed meanwhile: admission keeps a queue from
growing without end, and a few requests more or fewer do no harm.
"""

import threading
import time
from collections.abc import Callable, Hashable

from django.conf import settings

from operations import jobs, statements
from operations.holds import COVERS, NOT_HELD
from operations.order import NOT_BLOCKED

BELIEVED_SECONDS = 2.0
MOST_REMEMBERED = 10_000  # users and jobs a process

# Of the newest, for those are the open ones: a user with a million operations that are done costs no more.
OPEN = """
    SELECT count(*) FILTER (WHERE status IN ('queued', 'retry_scheduled', 'processing'))::int
    FROM (SELECT status FROM operations_operation WHERE owner_id = %(owner_id)s
          ORDER BY id DESC LIMIT %(newest)s) AS newest"""
# What waits because of a hold, or behind a dead letter, says nothing of the workers; nor does the time in
# which a hold was over it.
OLDEST = f"""
    SELECT COALESCE(EXTRACT(epoch FROM clock_timestamp() - (
        SELECT GREATEST(o.run_at, (
            SELECT max(h.ended_at) FROM operations_hold AS h
            WHERE h.ended_at > clock_timestamp() - interval '1 day' AND {COVERS}))
        FROM operations_operation AS o
        WHERE o.job_type = %(job_type)s AND o.status IN ('queued', 'retry_scheduled')
            AND o.run_at <= clock_timestamp() AND {NOT_BLOCKED} AND {NOT_HELD}
        ORDER BY o.run_at LIMIT 1)), 0)::float8"""  # noqa: S608 (only constants are put in)


class TooManyOpen(Exception):
    """The user has as many unfinished operations as one may have."""


class Overloaded(Exception):
    """What was accepted before waits so long that more would only wait with it."""


class Believed:
    """Answers that stay true enough for a moment."""

    def __init__(self) -> None:
        """Know nothing."""
        self._answers: dict[Hashable, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def ask(self, what: Hashable, question: Callable[[], float]) -> float:
        """Give the answer, asked anew if it is older than BELIEVED_SECONDS."""
        answer, until = self._answers.get(what, (0.0, 0.0))
        if time.monotonic() < until:
            return answer
        answer = question()
        with self._lock:
            if len(self._answers) >= MOST_REMEMBERED:
                self._answers.clear()
            self._answers[what] = answer, time.monotonic() + BELIEVED_SECONDS
        return answer

    def forget(self) -> None:
        self._answers.clear()


_open, _oldest = Believed(), Believed()


def check(job_type: str, *, owner_id: int) -> None:
    """Say nothing if a new operation may be accepted; outside transactions.

    Raises:
        Overloaded: the oldest that waits for this job has waited longer than OLDEST_WAIT_SECONDS.
        TooManyOpen: the user has MOST_OPEN_OPERATIONS that are not final.
    """
    waited = _oldest.ask(job_type, lambda: _oldest_wait(job_type))
    if settings.OLDEST_WAIT_SECONDS and waited > settings.OLDEST_WAIT_SECONDS:
        raise Overloaded(f"{job_type} has work that waits since {waited:.0f} s; the key has not been used up")
    most = settings.MOST_OPEN_OPERATIONS
    if most and _open.ask(owner_id, lambda: _number(OPEN, owner_id=owner_id, newest=2 * most)) >= most:
        raise TooManyOpen(f"{most} operations of yours are not done yet; the key has not been used up")


def forget() -> None:
    """Ask again, as after the database was changed by somebody else."""
    _open.forget()
    _oldest.forget()


def _oldest_wait(job_type: str) -> float:
    return _number(OLDEST, job_type=job_type, skip=jobs.skipping_the_dead())


def _number(sql: str, **values: object) -> float:
    row = statements.row(sql, values)
    return 0.0 if row is None else float(row[0])
