"""Leave a cache alone that does not answer, and believe it again when it has missed nothing."""

import logging
import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

from operations import cache_store, statements
from operations.cache_flights import chores
from operations.cache_store import AWAY

log = logging.getLogger(__name__)

FAILURES = 3  # in a row
PAUSE_SECONDS = 5.0
LOOK_SECONDS = 1.0  # between two looks whether it may be believed again
OWED = """
    SELECT EXISTS (SELECT FROM operations_aftercommit
        WHERE created_at < %(since)s::timestamptz AND invalidate <> '[]')"""

Result = TypeVar("Result")

# Note [A cache that was away is doubted]
# While this process could not reach the cache, perhaps others could not either, and what a commit made stale
# is stored there still. The relay owes that to the cache, in rows. So the cache is believed again when it
# answers and no row is left that is older than its first answer. That is looked at in the background: no
# reader waits for a cache that hangs once it is known to.


class Breaker:
    """Whether this process asks the cache."""

    _answered_at: datetime | None  # by the database's clock, for the first time since it was left alone

    def __init__(self) -> None:
        """Begin closed."""
        self.begin()

    def begin(self) -> None:
        """Begin closed, as a child does, with a lock that no thread of its parent holds."""
        self._lock = threading.Lock()
        self._close()

    def guard(self, ask: Callable[[], Result]) -> Result:
        """Ask the cache, and count how that ends. Raises what asking raises."""
        try:
            result = ask()
        except AWAY:
            self._failed()
            raise
        self._failures = 0
        return result

    def bypasses(self) -> bool:
        """Say whether the cache must not be asked now: it is away, or may have missed what was made stale."""
        if not self.is_open:
            return False
        if time.monotonic() >= self._look_at:
            chores.do("breaker", self.look)
        return True

    def look(self) -> None:
        """Ask whether the cache is there and all is told to it that was owed before it was."""
        self._look_at = time.monotonic() + LOOK_SECONDS
        try:
            cache_store.answers()
        except AWAY:
            self._open()
            return
        if self._answered_at is None:
            self._answered_at = statements.rows("SELECT clock_timestamp()", {})[0][0]
        owed = statements.row(OWED, {"since": self._answered_at})
        if owed is not None and not owed[0]:
            self._close()
            log.warning("cache.back")

    def _close(self) -> None:
        self._failures = 0
        self.is_open = False
        self._look_at = 0.0
        self._answered_at = None

    def _failed(self) -> None:
        with self._lock:
            self._failures += 1
            opens = self._failures >= FAILURES and not self.is_open
        if opens:
            self._open()
            log.warning("cache.left_alone", extra={"seconds": PAUSE_SECONDS})

    def _open(self) -> None:
        self._look_at = time.monotonic() + PAUSE_SECONDS
        self._answered_at = None
        self.is_open = True
