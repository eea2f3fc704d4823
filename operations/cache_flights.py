"""One load of a thing at a time in this process, and a few in the background."""

import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from django.db import connection

log = logging.getLogger(__name__)

AT_ONCE = 8  # loads of different things, beside each other: what a database can bear when the cache is away
IN_BACKGROUND = 2
MOST_WAITING = 32  # refreshes that may wait for their turn; more are asked for again by the next reader


class Flights:
    """Loads under way, by what they load: who comes meanwhile waits for the same."""

    def __init__(self) -> None:
        """Begin with none."""
        self._lock = threading.Lock()
        self._under_way: dict[str, Future[Any]] = {}
        self._room = threading.BoundedSemaphore(AT_ONCE)

    def share(self, name: str, load: Callable[[], Any], *, wait_seconds: float) -> Any:
        """Load, or wait for who loads the same; give what that gives, or raise what it raises."""
        with self._lock:
            flight = self._under_way.get(name)
            leads = flight is None
            if flight is None:
                flight = self._under_way[name] = Future()
        if not leads:
            return flight.result(wait_seconds)
        try:
            with self._room:
                flight.set_result(load())
        except BaseException as error:
            flight.set_exception(error)
        finally:
            with self._lock:
                del self._under_way[name]
        return flight.result()


class Background:
    """A few threads of this process that refresh what is stale; each closes its connection."""

    def __init__(self) -> None:
        """Start none before one is needed."""
        self._lock = threading.Lock()
        self._pid = 0
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: set[str] = set()

    def do(self, name: str, refresh: Callable[[], object]) -> bool:
        """Do it soon, if that is not about to be done and there is room; say whether."""
        with self._lock:
            if self._pid != os.getpid():  # a fork has the parent's pool, and none of its threads
                self._pid, self._waiting = os.getpid(), set()
                self._pool = ThreadPoolExecutor(IN_BACKGROUND, thread_name_prefix="cache")
            if name in self._waiting or len(self._waiting) >= MOST_WAITING or self._pool is None:
                return False
            self._waiting.add(name)
            self._pool.submit(self._do, name, refresh)
        return True

    def _do(self, name: str, refresh: Callable[[], object]) -> None:
        try:
            refresh()
        except Exception as error:
            log.warning("cache.not_refreshed", extra={"error": type(error).__name__})
        finally:
            connection.close()
            with self._lock:
                self._waiting.discard(name)
