"""Cached values that a commit can make stale at once, and that no slow reader can make old again.

Declare one in an app's `caches.py`, which every process reads at start:
`view = Cached("inventory:view", parts=("user_id",), load=load, ttl_seconds=600)`. Read it with
`view.get(user_id)`. Name it in the job that changes it, `invalidates=["inventory:view:{user_id}"]`, or call
`view.invalidate_after_commit(user_id)` in the transaction that does.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from functools import partial
from typing import Any

from django.db import transaction

from operations import cache_kinds, cache_names, cache_rebuild, cache_store, cache_writers, metrics
from operations.cache_books import book
from operations.cache_flights import Background, chores
from operations.cache_kinds import UnsafeCache
from operations.cache_leads import leads
from operations.cache_names import Place
from operations.cache_orders import Order, orders
from operations.cache_rebuild import ABSENT, CROWDED_SECONDS, Unavailable, breaker
from operations.cache_store import AWAY, LONGEST_SECONDS, Entry, Found

__all__ = ["ABSENT", "Cached", "Unavailable", "UnsafeCache"]

log = logging.getLogger(__name__)

_background = Background(threads=2)


@dataclass(frozen=True)
class Cached:
    """A kind of cached value.

    `load(*parts, *variants)` gives it as JSON, or ABSENT. A writer names the parts, and makes all variants of
    them stale: pages, orders, languages. After `soft_seconds` (by default 80 % of `ttl_seconds`) a reader
    still gets what there is at once, and it is rebuilt meanwhile; after `ttl_seconds` it is gone. Both are
    stretched at random by up to `jitter`, so that what was filled together does not end together. `strict`:
    not served old even if a worker dies between its commit and telling the cache.
    """

    name: str  # "inventory:view"
    _: KW_ONLY
    parts: tuple[str, ...]  # what they are, in their order: ("user_id",)
    load: Callable[..., Any]
    ttl_seconds: float
    soft_seconds: float | None = None
    variants: tuple[str, ...] = ()
    absent_seconds: float = 30.0
    jitter: float = 0.2
    rebuild_seconds: float = 10.0  # what takes longer is not stored; a leader that was killed leads so long
    schema: int = 1  # of the stored form: another number is another key
    strict: bool = False
    # changed_at(*parts, *variants): when the data changed last, for `manage.py caches compare`
    changed_at: Callable[..., datetime | None] | None = None

    def __post_init__(self) -> None:
        """Register it.

        Raises:
            UnsafeCache: its name is no name, or its times can't be kept.
        """
        if not cache_names.KIND.fullmatch(self.name):
            raise UnsafeCache(f"names of caches look like 'domain:noun', not {self.name!r}")
        fault = self.allows(Order())
        if fault:
            raise UnsafeCache(f"{self.name}: {fault}")
        cache_kinds.declare(self)

    def get(self, *parts: object) -> Any:
        """Give the value for `parts` and variants, from the cache or loaded; ABSENT if it is not there.

        Raises:
            Unavailable: there is none, and it can't be loaded just now.
        """
        place, alone = self.place(parts), _in_transaction()
        if breaker.bypasses():
            return self._past(place, parts, "error", alone)
        token = "" if alone else cache_store.new_name()
        try:
            found = cache_rebuild.look(self, place, token)
        except AWAY as error:
            log.warning("cache.away", extra={"cache": self.name, "error": type(error).__name__})
            return self._past(place, parts, "error", alone)
        if found.entry is not None:
            return self._served(place, found, found.entry, parts)
        if found.is_marked or alone:
            return self._past(place, parts, "miss", alone)
        self._count("miss", "misses")
        return cache_rebuild.value_of(cache_rebuild.obtain(self, place, found, token, parts))

    def invalidate_after_commit(self, *parts: object) -> None:
        """Make the values of `parts` stale when the open transaction commits; must be in one.

        What is owed is written with the transaction, so the relay does it if this process dies before. A
        strict value is marked for a minute: a longer transaction may show it old if its writer dies.

        Raises:
            Unavailable: it is strict, and the cache cannot be told before the commit.
        """
        name = self._named(parts, self.parts)
        if not transaction.get_connection().in_atomic_block:
            raise AssertionError(f"{name} is made stale by a commit, and no transaction is open")
        try:
            cache_writers.owe(name)
        except AWAY as error:
            raise Unavailable(self.name, CROWDED_SECONDS) from error

    def place(self, parts: tuple[object, ...]) -> Place:
        """Say where the value for `parts` and variants is kept."""
        name = self._named(parts, (*self.parts, *self.variants))
        namespace = cache_names.name_of(self.name, parts[: len(self.parts)]) if self.variants else ""
        return Place(name, namespace, self.schema)

    def serves(self, entry: Entry) -> bool:
        """Say whether a stored value may be served at all."""
        return entry.is_absent or orders.of(self.name).revalidate or self.stale_for(entry) <= 0

    def stale_for(self, entry: Entry) -> float:
        """Give the seconds since a value's fresh time; less than 0: it is fresh."""
        return entry.age_seconds - self.fresh_seconds * (1 + self.jitter_now * entry.roll)

    def loaded(self, *parts: object) -> Any:
        """Load a value past the cache, as it would come out of it."""
        return cache_rebuild.value_of(cache_rebuild.loaded(self, parts))

    def kept_seconds(self, *, absent: bool) -> tuple[float, float]:
        """Give how long to keep a value that is stored now, and what was rolled for it."""
        roll = cache_rebuild.roll()
        seconds = self.absent_seconds if absent else self.ttl_seconds
        return min(seconds * (1 + self.jitter_now * roll), LONGEST_SECONDS), roll

    def allows(self, order: Order) -> str:
        """Say what is wrong with an order; empty: nothing."""
        soft = self.soft_declared if order.soft_seconds is None else order.soft_seconds
        jitter = self.jitter if order.jitter is None else order.jitter
        if not 0 <= jitter <= 1:
            return f"a jitter is 0 to 1, not {jitter}"
        if not 0 < soft <= self.ttl_seconds:
            return f"fresh for {soft} s, and kept for {self.ttl_seconds} s"
        if not 0 < self.absent_seconds <= self.ttl_seconds <= LONGEST_SECONDS:
            return f"absent for {self.absent_seconds} s of {self.ttl_seconds} s, at most {LONGEST_SECONDS} s"
        return "" if self.rebuild_seconds > 0 else "a rebuild must be given time"

    @property
    def wait_seconds(self) -> float:
        """Give the seconds that a reader waits for another: longer than a leader may take."""
        return self.rebuild_seconds + cache_rebuild.FOLLOW_SECONDS

    @property
    def soft_declared(self) -> float:
        return 0.8 * self.ttl_seconds if self.soft_seconds is None else self.soft_seconds

    @property
    def fresh_seconds(self) -> float:
        """Give the seconds until a value is rebuilt behind its readers, as it is ordered now."""
        ordered = orders.of(self.name).soft_seconds
        return self.soft_declared if ordered is None else ordered

    @property
    def jitter_now(self) -> float:
        ordered = orders.of(self.name).jitter
        return self.jitter if ordered is None else ordered

    def _named(self, parts: tuple[object, ...], wanted: tuple[str, ...]) -> str:
        if len(parts) != len(wanted):
            raise TypeError(f"{self.name} is told by {', '.join(wanted)}, and got {len(parts)} values")
        return cache_names.name_of(self.name, parts)

    def _served(self, place: Place, found: Found, entry: Entry, parts: tuple[object, ...]) -> Any:
        if entry.is_absent:
            self._count("hit", "hits")
            return ABSENT
        stale_for = self.stale_for(entry)
        if stale_for <= 0:
            self._count("hit", "hits")
            return entry.value
        self._count("stale", "stale")
        metrics.bound(metrics.CACHE_STALE_SECONDS, self.name).observe(stale_for)
        if found.turn == 1:
            _background.do(place.name, partial(self._refresh, place, found.revision, parts))
        return entry.value

    def _refresh(self, place: Place, revision: str, parts: tuple[object, ...]) -> None:
        cache_rebuild.refresh(self, place, revision, parts)

    def _past(self, place: Place, parts: tuple[object, ...], result: str, alone: bool) -> Any:
        self._count(result, {"miss": "misses", "error": "errors"}[result])
        load = cache_rebuild.loaded if alone else partial(cache_rebuild.past, place=place)
        return cache_rebuild.value_of(load(self, parts=parts))

    def _count(self, result: str, field: str) -> None:
        metrics.bound(metrics.CACHE_REQUESTS, self.name, result).inc()
        book.count(self.name, **{field: 1})


# Note [What is loaded in a transaction is stored by nobody]
# A transaction sees what it has written and may take back, or a snapshot from before a commit that the cache
# has been told of. So within one, what is cached is served; anything else is loaded for this reader alone.
def _in_transaction() -> bool:
    """Say whether this thread has a transaction open, other than the one that Django's TestCase is in."""
    blocks = transaction.get_connection().atomic_blocks
    return any(not getattr(block, "_from_testcase", False) for block in blocks)


def _begin_anew() -> None:
    """Let a child have locks that no thread of its parent holds, and threads of its own."""
    for each in (breaker, leads, cache_rebuild.flights, cache_rebuild.room, _background, chores, book):
        each.begin()


os.register_at_fork(after_in_child=_begin_anew)
