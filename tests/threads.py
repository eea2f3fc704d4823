"""Do things at the same moment, each on a database connection of its own."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Barrier, Event
from typing import Any

from django.db import OperationalError, connection, transaction

PATIENCE_SECONDS = 10.0  # much longer than anything waited for takes, so that only a hang reaches it

WAITING_STATEMENTS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock'"""


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Start all calls at one moment and give their results in order; the first error is raised."""
    start = Barrier(len(calls))
    with ThreadPoolExecutor(len(calls)) as pool:
        running = [pool.submit(_with_own_connection, call, start.wait) for call in calls]
        return [each.result(PATIENCE_SECONDS) for each in running]


def aside(call: Callable[[], Any]) -> Future[Any]:
    """Begin one call in a thread and give its future at once."""
    pool = ThreadPoolExecutor(1)
    running = pool.submit(_with_own_connection, call)
    pool.shutdown(wait=False)
    return running


@contextmanager
def meanwhile(act: Callable[[], Any]) -> Iterator[None]:
    """In the block, another connection has done `act` and not committed it; at its end it does."""
    acted, leave = Event(), Event()

    def hold() -> None:
        with transaction.atomic():
            act()
            acted.set()
            leave.wait(PATIENCE_SECONDS)

    other = aside(hold)
    acted.wait(PATIENCE_SECONDS)
    try:
        yield
    finally:
        leave.set()
        other.result(PATIENCE_SECONDS)


def until(happened: Callable[[], Any]) -> Any:
    """Look again and again until something is true, and give it."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not (seen := happened()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)
    return seen


def others_wait(number: int = 1) -> bool:
    """Say whether as many statements of this database wait for a lock."""
    with connection.cursor() as cursor:
        cursor.execute(WAITING_STATEMENTS)
        return cursor.fetchone()[0] >= number


def _with_own_connection(call: Callable[[], Any], wait_for_start: Callable[[], Any] = bool) -> Any:
    try:
        connection.ensure_connection()
        wait_for_start()
        return call()
    finally:
        connection.close()


def lose_connection() -> None:
    """Let the server end this thread's connection, as its restart would: the next statement finds it dead."""
    with suppress(OperationalError), connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    connection.errors_occurred = False  # what a connection that was idle meanwhile would say
