"""Rebuild a value that is not cached: one reader of all processes loads it, the others wait for it."""

import json
import logging
import random
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from django.db import InterfaceError, OperationalError

from operations import cache_store, metrics
from operations.cache_books import book
from operations.cache_breaker import Breaker
from operations.cache_names import Place
from operations.cache_store import AWAY, Entry

if TYPE_CHECKING:
    from operations.cache import Cached

log = logging.getLogger(__name__)

ABSENT: Final = object()  # what a loader gives for a thing that is not there
LOOK_SECONDS = 0.02  # between two looks for what a leader stores
COOL_SECONDS = 5.0  # after a rebuild that failed nobody tries another
FOLLOW_SECONDS = 2.0  # that a reader waits longer than a leader may take; then it loads for itself

breaker = Breaker()


class Unavailable(Exception):
    """There is no value, and it can't be loaded just now; ask again after `wait` seconds."""

    def __init__(self, name: str, seconds: float) -> None:
        """Say which."""
        super().__init__(f"{name} can't be had just now")
        self.wait = seconds


def loaded(cached: "Cached", parts: tuple[object, ...]) -> str | None:
    """Load a value, as JSON text; None: it is absent. So every reader has it as it comes out of the cache.

    Raises:
        TypeError: the loader gave what is no JSON.
    """
    value = cached.load(*parts)
    if value is ABSENT:
        return None
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TypeError(f"what {cached.name} loads is no JSON: {error}") from error


def led(cached: "Cached", place: Place, revision: str, parts: tuple[object, ...]) -> str | None:
    """Rebuild a value if nobody does, or wait for who does; load alone if that takes too long or is in vain.

    Raises:
        Unavailable: loading it has just failed.
    """
    try:
        found = _lead_or_follow(cached, place, revision, parts)
    except AWAY as error:
        log.warning("cache.away", extra={"cache": cached.name, "error": type(error).__name__})
        found = None
    if found is not None:
        return found[0]
    metrics.CACHE_FLIGHTS.labels(cached.name, "timeout").inc()
    return loaded(cached, parts)


def refresh(cached: "Cached", place: Place, revision: str, parts: tuple[object, ...]) -> None:
    """Rebuild what is stale, if nobody does and that has not just failed."""
    token = secrets.token_hex(8)
    if cache_store.lead(place, revision, token, seconds=cached.rebuild_seconds) == 1:
        _rebuild(cached, place, revision, token, parts)


def _lead_or_follow(
    cached: "Cached", place: Place, revision: str, parts: tuple[object, ...]
) -> tuple[str | None] | None:
    give_up_at = time.monotonic() + cached.rebuild_seconds + FOLLOW_SECONDS
    token = secrets.token_hex(8)
    while time.monotonic() < give_up_at:
        turn = _turn(cached, place, revision, token)
        if turn == 1:
            return (_rebuild(cached, place, revision, token, parts),)
        if turn < 0:
            raise Unavailable(cached.name, -turn)
        time.sleep(LOOK_SECONDS)
        found = breaker.guard(lambda: cache_store.read(place))
        if found.is_marked:
            return None
        if found.entry is not None and cached.serves(found.entry):
            metrics.CACHE_FLIGHTS.labels(cached.name, "follower").inc()
            return (text_of(found.entry),)
        revision = found.revision  # another, if it was made stale meanwhile
    return None


def _turn(cached: "Cached", place: Place, revision: str, token: str) -> float:
    return breaker.guard(lambda: cache_store.lead(place, revision, token, seconds=cached.rebuild_seconds))


def _rebuild(
    cached: "Cached", place: Place, revision: str, token: str, parts: tuple[object, ...]
) -> str | None:
    """Load as the only one, and store it under the revision that was read before the load."""
    metrics.CACHE_FLIGHTS.labels(cached.name, "leader").inc()
    began = time.monotonic()
    try:
        text = loaded(cached, parts)
    except Exception as error:
        _count(cached, "error", time.monotonic() - began)
        _try(lambda: cache_store.give_up(place, revision, token, seconds=COOL_SECONDS))
        _tell_of(cached, error)
        raise Unavailable(cached.name, COOL_SECONDS) from error
    _count(cached, "ok", time.monotonic() - began)
    seconds, roll = cached.kept_seconds(absent=text is None)
    entry = cache_store.entry_text(place.name, text, seconds=seconds, roll=roll)
    if _try(lambda: cache_store.store(place, revision, token, entry, seconds=seconds)) is False:
        log.warning("cache.too_slow", extra={"cache": cached.name, "seconds": cached.rebuild_seconds})
    return text


def _tell_of(cached: "Cached", error: Exception) -> None:
    """Log a failed load once for all who get Unavailable for it. A database that is away is nobody's bug."""
    away = isinstance(error, (OperationalError, InterfaceError))
    said = {"cache": cached.name, "error": type(error).__name__}
    log.log(logging.WARNING if away else logging.ERROR, "cache.not_rebuilt", extra=said, exc_info=not away)


def _count(cached: "Cached", outcome: str, seconds: float) -> None:
    metrics.CACHE_REBUILD.labels(cached.name, outcome).observe(seconds)
    book.count(cached.name, "rebuilds" if outcome == "ok" else "failed")
    book.count(cached.name, "rebuild_seconds", seconds)
    book.count(cached.name, "rebuild_seconds_max", seconds)


def roll() -> float:
    """Give the share of the jitter by which a value's times are stretched, 0 to 1."""
    return random.random()  # noqa: S311 (spreads ends, hides nothing)


def text_of(entry: Entry) -> str | None:
    return None if entry.is_absent else json.dumps(entry.value)


def value_of(text: str | None) -> Any:
    return ABSENT if text is None else json.loads(text)


def _try(do: Callable[[], Any]) -> Any:
    """Tell the cache; a cache that is away is told nothing, and whoever asked has its value."""
    try:
        return do()
    except AWAY as error:
        log.warning("cache.away", extra={"error": type(error).__name__})
        return None
