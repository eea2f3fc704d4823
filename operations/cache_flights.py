"""One load of a thing at a time in this process, and a few in the background."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from django.db import connection

log = logging.getLogger(__name__)

AT_ONCE = 8  # loads of different things, beside each other: what a database can bear when the cache is away
MOST_WAITING = 32  # things that may wait for their turn; more are asked for again by the next reader

Result = TypeVar("Result")


class Crowded(Exception):
    """There was no turn, or no end of who had it, within the time that one may wait."""


class Room:
    """For a few loads at once in this process."""

    def __init__(self) -> None:
        """Have room for all."""
        self.begin()

    def begin(self) -> None:
        """Begin anew, as in a child: a thread of the parent may have held a lock when it forked."""
        self._free = threading.BoundedSemaphore(AT_ONCE)
        self._mine = threading.local()  # a load may need another cached value: it has its place already

    @property
    def is_mine(self) -> bool:
        """Say whether this thread holds a place."""
        return getattr(self._mine, "is_held", False)

    @contextmanager
    def hold(
        self, wait_seconds: float, *, before_waiting: Callable[[], object] | None = None
    ) -> Iterator[bool]:
        """Take a place for the block, and say whether it had to be waited for.

        Raises:
            Crowded: none was free in time.
        """
        if self.is_mine:
            yield False
            return
        waits = not self._free.acquire(blocking=False)
        if waits:
            if before_waiting is not None:
                before_waiting()
            if not self._free.acquire(timeout=max(0.0, wait_seconds)):
                raise Crowded
        try:
            self._mine.is_held = True
            yield waits
        finally:
            self._mine.is_held = False
            self._free.release()


class Flight:
    """One load that several may share."""

    def __init__(self, after: "Flight | None", *, late_at: float) -> None:
        """Come after another one of the same thing, if that is under way."""
        self.after = after
        self.late_at = late_at  # time.monotonic(): its leader may have been stopped in the middle of things
        self.has_begun = False
        self.result: Future[Any] = Future()


class Flights:
    """Loads under way, by what they load: who comes meanwhile waits for the same."""

    def __init__(self) -> None:
        """Begin with none."""
        self.begin()

    def begin(self) -> None:
        """Begin anew, as in a child."""
        self._lock = threading.Lock()
        self._newest: dict[str, Flight] = {}

    def share(
        self, name: str, load: Callable[[], Result], *, wait_seconds: float, exact: bool = False
    ) -> Result:
        """Load, or wait for who loads the same; give what that gives, or raise what it raises.

        `exact`: share no load that has begun before this call, since it may have read before a commit that
        this reader must see. So of many readers at once, one load runs and one waits for the rest.

        Raises:
            Crowded: it took longer than `wait_seconds`.
        """
        give_up_at = time.monotonic() + wait_seconds
        flight, leads = self._join(name, exact, give_up_at)
        if leads:
            self._fly(name, flight, load, give_up_at)
        _, late = wait([flight.result], give_up_at - time.monotonic())
        if late:
            raise Crowded
        result: Result = flight.result.result()
        return result

    def _join(self, name: str, exact: bool, give_up_at: float) -> tuple[Flight, bool]:
        with self._lock:
            newest = self._newest.get(name)
            if newest is not None and time.monotonic() > newest.late_at:
                newest = None
            if newest is not None and not (exact and newest.has_begun):
                return newest, False
            mine = self._newest[name] = Flight(newest, late_at=give_up_at)
            return mine, True

    def _fly(self, name: str, flight: Flight, load: Callable[[], Any], give_up_at: float) -> None:
        try:
            self._wait_for_turn(flight, give_up_at)
            with self._lock:
                flight.has_begun = True
            flight.result.set_result(load())
        except BaseException as error:
            flight.result.set_exception(error)
        finally:
            with self._lock:
                if self._newest.get(name) is flight:
                    del self._newest[name]

    def _wait_for_turn(self, flight: Flight, give_up_at: float) -> None:
        before, flight.after = flight.after, None
        if before is not None and wait([before.result], give_up_at - time.monotonic()).not_done:
            raise Crowded


class Background:
    """A few threads of this process; each closes its connection to the database when it has done a thing."""

    def __init__(self, threads: int) -> None:
        """Start none before one is needed."""
        self._threads = threads
        self.begin()

    def begin(self) -> None:
        """Begin anew, as in a child, which has none of its parent's threads."""
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: set[str] = set()

    def do(self, name: str, work: Callable[[], object]) -> bool:
        """Do it soon, if that is not about to be done and there is room; say whether."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="cache")
            if name in self._waiting or len(self._waiting) >= MOST_WAITING:
                return False
            self._waiting.add(name)
            pool = self._pool
        try:
            pool.submit(_do, work).add_done_callback(partial(self._done, name))
        except RuntimeError:  # no thread is to be had, or the process is about to end
            with self._lock:
                self._waiting.discard(name)
            return False
        return True

    def _done(self, name: str, work: "Future[object]") -> None:
        error = work.exception()
        if error is not None:  # nobody waits for it, and the next reader asks for it again
            log.warning("cache.not_done", extra={"what": name, "error": type(error).__name__})
        with self._lock:
            self._waiting.discard(name)


def _do(work: Callable[[], object]) -> None:
    try:
        work()
    finally:
        connection.close()


chores = Background(threads=1)  # what the caches' own upkeep needs, however long loads take
