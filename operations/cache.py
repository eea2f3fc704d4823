"""Cached values that a commit can make stale at once, and that no slow reader can make old again.

Declare one in an app's `caches.py`, which every process reads at start:
`view = Cached("inventory:view", load=load, ttl_seconds=600)`. Read it with `view.get(user_id)`, and name it
in the job that changes it: `invalidates=["inventory:view:{user_id}"]`.
"""

import logging
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from operations import cache_store, metrics
from operations.cache_flights import Background, Flights
from operations.cache_store import AWAY, LONGEST_SECONDS, Breaker, Found

log = logging.getLogger(__name__)

ABSENT: Final = object()  # what a loader gives for a thing that is not there
REBUILD_SECONDS = 10.0  # a leader that takes longer, or was killed, leads no more
WAIT_SECONDS = 12.0  # for a leader; then a reader loads for itself
LOOK_SECONDS = 0.02  # between two looks for what a leader stores
COOL_SECONDS = 5.0  # after a rebuild that failed nobody tries another

breaker = Breaker()
_flights, _background = Flights(), Background()
_declared: dict[str, "Cached"] = {}


class Unavailable(Exception):
    """There is no value, and rebuilding it has just failed; ask again after `wait` seconds."""

    def __init__(self, name: str, seconds: float) -> None:
        """Say which."""
        super().__init__(f"{name} can't be had just now")
        self.wait = seconds


@dataclass(frozen=True)
class Cached:
    """A kind of cached value. `load(*parts)` gives it as JSON, or ABSENT; `ttl_seconds` bounds its age.

    After `soft_seconds` (by default 80 % of it) a reader still gets it at once, and it is rebuilt meanwhile.
    Both are stretched at random by up to `jitter`, so that what was filled together does not end together.
    `strict`: not served old even if a worker dies between its commit and telling the cache.
    """

    name: str
    load: Callable[..., Any]
    ttl_seconds: float
    soft_seconds: float | None = None
    absent_seconds: float = 30.0
    jitter: float = 0.2
    schema: int = 1  # of the stored form: another number is another key
    strict: bool = False

    def __post_init__(self) -> None:
        """Refuse times that can't be kept."""
        if not 0 < self.fresh_seconds <= self.ttl_seconds <= LONGEST_SECONDS / (1 + self.jitter):
            raise ValueError(
                f"{self.name}: fresh {self.fresh_seconds} s of {self.ttl_seconds} s of {LONGEST_SECONDS} s"
            )
        _declared[self.name] = self

    def get(self, *parts: object) -> Any:
        """Give the value for `parts`, from the cache or loaded; ABSENT if it is not there.

        Raises:
            Unavailable: there is none, and loading it has just failed.
        """
        name = ":".join([self.name, *map(str, parts)])
        if breaker.bypasses():
            return self._without_cache(name, parts)
        try:
            found = breaker.guard(lambda: cache_store.read(name, schema=self.schema))
        except AWAY as error:
            log.warning("cache.away", extra={"cache": self.name, "error": type(error).__name__})
            return self._without_cache(name, parts)
        if found.dirty:
            return self._without_cache(name, parts)
        if found.entry is None:
            return self._rebuilt(name, found, parts)
        return self._served(name, found, found.entry, parts)

    def _served(self, name: str, found: Found, entry: dict[str, Any], parts: tuple[object, ...]) -> Any:
        fresh = time.time() < entry.get("soft_until", 0)
        metrics.CACHE_REQUESTS.labels(self.name, "hit" if fresh else "stale").inc()
        if not fresh:
            _background.do(name, lambda: self._refresh(name, found.revision, parts))
        return _value_of(entry)

    def _rebuilt(self, name: str, found: Found, parts: tuple[object, ...]) -> Any:
        metrics.CACHE_REQUESTS.labels(self.name, "miss").inc()
        return _flights.share(
            f"{name}:{found.revision}",
            lambda: self._led(name, found.revision, parts),
            wait_seconds=2 * WAIT_SECONDS,
        )

    def _led(self, name: str, revision: str, parts: tuple[object, ...]) -> Any:
        """Rebuild if nobody does, or wait for who does, of all processes; in the end load alone."""
        try:
            outcome = self._lead_or_follow(name, revision, parts)
        except AWAY as error:
            log.warning("cache.away", extra={"cache": self.name, "error": type(error).__name__})
            outcome = None
        if outcome is not None:
            return outcome[0]
        metrics.CACHE_FLIGHTS.labels(self.name, "timeout").inc()
        return self.load(*parts)

    def _lead_or_follow(self, name: str, revision: str, parts: tuple[object, ...]) -> tuple[Any] | None:
        give_up_at = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < give_up_at:
            if cache_store.is_cooling(name, revision):
                raise Unavailable(self.name, COOL_SECONDS)
            token = cache_store.begin_rebuild(name, revision, seconds=REBUILD_SECONDS)
            if token is not None:
                return (self._rebuild(name, revision, token, parts),)
            time.sleep(LOOK_SECONDS)
            found = cache_store.read(name, schema=self.schema)
            if found.entry is not None:
                metrics.CACHE_FLIGHTS.labels(self.name, "follower").inc()
                return (_value_of(found.entry),)
            revision = found.revision  # another, if it was made stale meanwhile
        return None

    def _refresh(self, name: str, revision: str, parts: tuple[object, ...]) -> None:
        if cache_store.is_cooling(name, revision):
            return
        token = cache_store.begin_rebuild(name, revision, seconds=REBUILD_SECONDS)
        if token is not None:
            self._rebuild(name, revision, token, parts)

    def _rebuild(self, name: str, revision: str, token: str, parts: tuple[object, ...]) -> Any:
        """Load as the only one, and store it under the revision that was read before the load."""
        metrics.CACHE_FLIGHTS.labels(self.name, "leader").inc()
        began = time.monotonic()
        try:
            value = self.load(*parts)
        except Exception:
            metrics.CACHE_REBUILD.labels(self.name, "error").observe(time.monotonic() - began)
            _try(lambda: cache_store.cool_down(name, revision, seconds=COOL_SECONDS))
            _try(lambda: cache_store.end_rebuild(name, revision, token))
            raise
        metrics.CACHE_REBUILD.labels(self.name, "ok").observe(time.monotonic() - began)
        _try(lambda: self._store(name, revision, value))
        _try(lambda: cache_store.end_rebuild(name, revision, token))
        return value

    def _store(self, name: str, revision: str, value: Any) -> None:
        stretch = 1 + random.uniform(0, self.jitter)  # noqa: S311 (spreads ends, hides nothing)
        if value is ABSENT:
            entry: dict[str, Any] = {"absent": True, "soft_until": time.time() + self.absent_seconds}
            seconds = self.absent_seconds
        else:
            entry = {"value": value, "soft_until": time.time() + self.fresh_seconds * stretch}
            seconds = self.ttl_seconds * stretch
        cache_store.store(name, revision, entry, schema=self.schema, seconds=seconds)

    def _without_cache(self, name: str, parts: tuple[object, ...]) -> Any:
        metrics.CACHE_REQUESTS.labels(self.name, "error").inc()
        return _flights.share(f"{name}:past", lambda: self.load(*parts), wait_seconds=2 * WAIT_SECONDS)

    @property
    def fresh_seconds(self) -> float:
        """Give the seconds until a value is rebuilt behind its readers."""
        return 0.8 * self.ttl_seconds if self.soft_seconds is None else self.soft_seconds


def invalidate(name: str) -> None:
    """Make the value called `name` (a cache's name and its parts, joined by colons) stale for every reader.

    Raises:
        redis.exceptions.RedisError: the cache cannot be reached; the value may still be served.
    """
    kind = _kind(name)
    try:
        cache_store.invalidate(name)
    except AWAY:
        metrics.CACHE_INVALIDATIONS.labels(kind, "error").inc()
        raise
    metrics.CACHE_INVALIDATIONS.labels(kind, "ok").inc()


def about_to_change(names: Iterable[str]) -> None:
    """Mark what is strict of `names` before the commit that changes it.

    Raises:
        redis.exceptions.RedisError: the cache cannot be told, so nothing may be committed.
    """
    for name in names:
        cached = _declared.get(_kind(name))
        if cached is not None and cached.strict:
            cache_store.mark(name)


def every() -> list[Cached]:
    return list(_declared.values())


def _kind(name: str) -> str:
    return next((kind for kind in _declared if name.startswith(f"{kind}:")), name.rpartition(":")[0])


def _value_of(entry: dict[str, Any]) -> Any:
    return ABSENT if entry.get("absent") else entry["value"]


def _try(do: Callable[[], object]) -> None:
    """Tell the cache; a cache that is away is told nothing, and whoever asked has its value."""
    try:
        do()
    except AWAY as error:
        log.warning("cache.away", extra={"error": type(error).__name__})
