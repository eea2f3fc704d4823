"""Rebuild a value that is not cached: one reader of all processes loads it, the others wait for it."""

import json
import logging
import random
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from django.db import InterfaceError, OperationalError

from operations import cache_store, metrics
from operations.cache_books import book
from operations.cache_breaker import Breaker
from operations.cache_flights import Crowded, Flights, Room
from operations.cache_leads import leads
from operations.cache_names import Place
from operations.cache_store import AWAY, Entry, Found

if TYPE_CHECKING:
    from operations.cache import Cached

log = logging.getLogger(__name__)

ABSENT: Final = object()  # what a loader gives for a thing that is not there
LOOK_SECONDS = 0.02  # between two looks for what a leader stores
COOL_SECONDS = 5.0  # after a rebuild that failed nobody tries another
FOLLOW_SECONDS = 2.0  # that a reader waits longer than a leader may take; then it loads for itself
# What a reader gets when it had no turn to load in time. All behind it wait as long, so they come apart.
CROWDED_SECONDS = 2.0

_encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
breaker, flights, room = Breaker(), Flights(), Room()


class Unavailable(Exception):
    """There is no value, and it can't be loaded just now; ask again after `wait` seconds."""

    def __init__(self, name: str, seconds: float) -> None:
        """Say which."""
        super().__init__(f"{name} can't be had just now")
        self.wait = self.retry_after_seconds = seconds


def loaded(cached: "Cached", parts: tuple[object, ...]) -> str | None:
    """Load a value, as JSON text; None: it is absent. So every reader has it as it comes out of the cache.

    Raises:
        TypeError: the loader gave what is no JSON.
    """
    value = cached.load(*parts)
    if value is ABSENT:
        return None
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"what {cached.name} loads is no JSON: {error}") from error


def look(cached: "Cached", place: Place, token: str) -> Found:
    """Read a value that may be served; if there is none, and with a token, a turn to rebuild it.

    Raises:
        redis.exceptions.RedisError: the cache is away, slow, full or read-only.
    """
    leads.look()
    try:
        return _looked(cached, place, token)
    except AWAY:
        if token:
            leads.lose(place, token, seconds=cached.rebuild_seconds)
        raise


def obtain(cached: "Cached", place: Place, found: Found, token: str, parts: tuple[object, ...]) -> str | None:
    """Rebuild a value if it is this reader's turn, or wait for who does.

    Raises:
        Unavailable: loading it has just failed, or there was no room for it in time.
    """
    if found.turn < 0:
        raise Unavailable(cached.name, -found.turn)
    rebuilt = _lead(cached, place, found.revision, token, parts) if found.turn == 1 else None
    if rebuilt is not None:
        return rebuilt[0]
    follow = partial(_follow, cached, place, parts)
    return shared(cached, f"{place.name}={found.revision}", follow, exact=False)


def past(cached: "Cached", *, place: Place, parts: tuple[object, ...]) -> str | None:
    """Load past the cache: what a commit may have changed since another load began is loaded anew."""

    def load() -> str | None:
        with room.hold(cached.wait_seconds):
            return loaded(cached, parts)

    return shared(cached, place.name, load, exact=True)


def shared(cached: "Cached", flight: str, load: Callable[[], str | None], *, exact: bool) -> str | None:
    """Share a load with those of this process who want the same.

    Raises:
        Unavailable: there was no turn, no room or no end of it in time.
    """
    try:
        return flights.share(flight, load, wait_seconds=2 * cached.wait_seconds, exact=exact)
    except Crowded as crowded:
        raise Unavailable(cached.name, CROWDED_SECONDS) from crowded


def refresh(cached: "Cached", place: Place, revision: str, parts: tuple[object, ...]) -> None:
    """Rebuild what is stale, if nobody does and that has not just failed."""
    token, seconds = cache_store.new_name(), cached.rebuild_seconds
    turn = _tell(cached, place, token, lambda: cache_store.lead(place, revision, token, seconds=seconds))
    if turn == 1:
        _lead(cached, place, revision, token, parts)


def _looked(cached: "Cached", place: Place, token: str) -> Found:
    seconds = cached.rebuild_seconds
    found = breaker.guard(
        lambda: cache_store.read(place, strict=cached.strict, token=token, lead_seconds=seconds)
    )
    if found.entry is None or cached.serves(found.entry):
        return found
    if not token:
        return found._replace(entry=None)
    turn = breaker.guard(lambda: cache_store.lead(place, found.revision, token, seconds=seconds))
    return Found(found.revision, found.is_marked, None, turn)


def _follow(cached: "Cached", place: Place, parts: tuple[object, ...]) -> str | None:
    """Wait for who rebuilds it; take over where it is given up; load alone if that takes too long."""
    give_up_at, token = time.monotonic() + cached.wait_seconds, cache_store.new_name()
    try:
        while time.monotonic() < give_up_at:
            time.sleep(LOOK_SECONDS)
            found = look(cached, place, token)
            if found.entry is not None:
                metrics.bound(metrics.CACHE_FLIGHTS, cached.name, "follower").inc()
                return text_of(found.entry)
            if found.turn:
                return obtain(cached, place, found, token, parts)
            if found.is_marked:
                break
    except AWAY as error:
        log.warning("cache.away", extra={"cache": cached.name, "error": type(error).__name__})
    metrics.bound(metrics.CACHE_FLIGHTS, cached.name, "timeout").inc()
    with room.hold(cached.wait_seconds):
        return _load(cached, parts)


def _lead(
    cached: "Cached", place: Place, revision: str, token: str, parts: tuple[object, ...]
) -> tuple[str | None] | None:
    """Load as the only one, and store it under the revision that was read before the load.

    Who has to wait for room does not lead meanwhile: others would wait for who waits. None: another leads.
    """

    def let_go() -> None:
        _tell(cached, place, token, lambda: cache_store.let_go(place, token))

    def lead() -> float:
        return cache_store.lead(place, revision, token, seconds=cached.rebuild_seconds)

    try:
        with room.hold(cached.wait_seconds, before_waiting=let_go) as has_waited:
            if has_waited and _tell(cached, place, token, lead) not in (1, None):
                return None
            text = _load_as_leader(cached, place, revision, token, parts)
    except Crowded as crowded:
        raise Unavailable(cached.name, CROWDED_SECONDS) from crowded
    _store(cached, place, revision, token, text)
    return (text,)


def _load_as_leader(
    cached: "Cached", place: Place, revision: str, token: str, parts: tuple[object, ...]
) -> str | None:
    metrics.bound(metrics.CACHE_FLIGHTS, cached.name, "leader").inc()
    try:
        return _load(cached, parts)
    except Unavailable as error:
        pause = error.wait
        _tell(cached, place, token, lambda: cache_store.give_up(place, revision, token, seconds=pause))
        raise
    except BaseException:  # the thread is wanted elsewhere, and nothing is wrong with the value
        _tell(cached, place, token, lambda: cache_store.let_go(place, token))
        raise


def _store(cached: "Cached", place: Place, revision: str, token: str, text: str | None) -> None:
    seconds, roll = cached.kept_seconds(absent=text is None)
    entry = cache_store.entry_text(place.name, text, seconds=seconds, roll=roll)
    stored = _tell(
        cached, place, token, lambda: cache_store.store(place, revision, token, entry, seconds=seconds)
    )
    if stored is False:
        log.warning("cache.too_slow", extra={"cache": cached.name, "seconds": cached.rebuild_seconds})


def _load(cached: "Cached", parts: tuple[object, ...]) -> str | None:
    """Load a value; whatever its loader raises is its failure, and told to all who wait for it.

    Raises:
        Unavailable: it failed; or another cached value that it needs can't be had, for as long as that says.
    """
    began = time.monotonic()
    try:
        text = loaded(cached, parts)
    except Unavailable as inner:
        _count(cached, "error", time.monotonic() - began)
        raise Unavailable(cached.name, inner.wait) from inner
    except Exception as error:
        _count(cached, "error", time.monotonic() - began)
        _tell_of(cached, error)
        raise Unavailable(cached.name, COOL_SECONDS) from error
    _count(cached, "ok", time.monotonic() - began)
    return text


def _tell_of(cached: "Cached", error: Exception) -> None:
    """Log a failed load once for all who get Unavailable for it. A database that is away is nobody's bug."""
    away = isinstance(error, (OperationalError, InterfaceError))
    said = {"cache": cached.name, "error": type(error).__name__}
    log.log(logging.WARNING if away else logging.ERROR, "cache.not_rebuilt", extra=said, exc_info=not away)


def _count(cached: "Cached", outcome: str, seconds: float) -> None:
    metrics.bound(metrics.CACHE_REBUILD, cached.name, outcome).observe(seconds)
    ended = {"rebuilds" if outcome == "ok" else "failed": 1}
    book.count(cached.name, **ended, rebuild_seconds=seconds, rebuild_seconds_max=seconds)


def roll() -> float:
    """Give the share of the jitter by which a value's times are stretched, 0 to 1."""
    return random.random()  # noqa: S311 (spreads ends, hides nothing)


def text_of(entry: Entry) -> str | None:
    return None if entry.is_absent else json.dumps(entry.value)


def value_of(text: str | None) -> Any:
    return ABSENT if text is None else json.loads(text)


def _tell(cached: "Cached", place: Place, token: str, do: Callable[[], Any]) -> Any:
    """Tell the cache something about a lead; if it is away, give None and let the lead go later."""
    try:
        return do()
    except AWAY as error:
        log.warning("cache.away", extra={"cache": cached.name, "error": type(error).__name__})
        leads.lose(place, token, seconds=cached.rebuild_seconds)
        return None
