"""How often each cache had what was asked for, in all processes: figures by the hour, kept for a day.

They are in the cache's own Redis, so a flush forgets them. Prometheus has the same, and for longer.
"""

import threading
import time
from collections import defaultdict
from typing import NamedTuple

from operations import cache_names, cache_store
from operations.cache_flights import chores
from operations.cache_store import AWAY

WRITE_SECONDS = 1.0  # between two writes of a process
HOUR_SECONDS = 3_600
KEPT_HOURS = 24


class Figures(NamedTuple):
    """What happened to the reads of a cache."""

    hits: int = 0
    stale: int = 0  # served past their fresh time
    misses: int = 0
    errors: int = 0  # loaded past a cache that was away
    rebuilds: int = 0
    failed: int = 0  # rebuilds
    rebuild_seconds: float = 0.0  # together
    rebuild_seconds_max: float = 0.0
    invalidations: int = 0

    @property
    def reads(self) -> int:
        return self.hits + self.stale + self.misses + self.errors

    def share(self, what: int) -> float | None:
        """Give a part of the reads, 0 to 1; None if there were none."""
        return round(what / self.reads, 4) if self.reads else None


class Book:
    """What this process has counted and not yet written down."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.begin()

    def begin(self) -> None:
        """Begin anew, as in a child: what the parent has counted, it writes down itself."""
        self._lock = threading.Lock()
        self._counted: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._write_at = 0.0

    def count(self, kind: str, **amounts: float) -> None:
        """Count what happened, named as in Figures; a field that ends in _max keeps the largest."""
        with self._lock:
            mine = self._counted[kind]
            for field, amount in amounts.items():
                mine[field] = max(mine[field], amount) if field.endswith("_max") else mine[field] + amount
            now = time.monotonic()
            if now < self._write_at:
                return
            self._write_at = now + WRITE_SECONDS
        chores.do("books", self.write)

    def write(self) -> None:
        """Add what was counted to the books of this hour. What can't be written is forgotten."""
        with self._lock:
            counted, self._counted = self._counted, defaultdict(lambda: defaultdict(float))
        hour = int(time.time()) // HOUR_SECONDS
        try:
            for kind, amounts in counted.items():
                cache_store.book(_key(kind, hour), amounts, seconds=(KEPT_HOURS + 1) * HOUR_SECONDS)
        except AWAY:
            self._write_at = time.monotonic() + 10 * WRITE_SECONDS


book = Book()


def figures(kind: str, *, hours: int) -> Figures:
    """Add up the books of this hour and those before it, `hours` in all.

    Raises:
        redis.exceptions.RedisError: the cache is away.
    """
    this = int(time.time()) // HOUR_SECONDS
    pipe = cache_store.client().pipeline(transaction=False)
    for hour in range(this - hours + 1, this + 1):
        pipe.hgetall(_key(kind, hour))
    written = [{name.decode(): float(text) for name, text in each.items()} for each in pipe.execute()]
    found = {name: [each[name] for each in written if name in each] for name in Figures._fields}
    whole = Figures._field_defaults
    return Figures(
        **{
            name: type(whole[name])(max(each) if name.endswith("_max") else sum(each))
            for name, each in found.items()
            if each
        }
    )


def _key(kind: str, hour: int) -> str:
    return f"{cache_names.beginning('books', kind)}{hour}"
