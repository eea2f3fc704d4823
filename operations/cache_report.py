"""What there is to tell of the caches: as they are declared and ordered, how they do, whether they lie."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from operations import cache_kinds, cache_names, cache_store, jobs
from operations.cache import ABSENT, Cached
from operations.cache_books import KEPT_HOURS, figures
from operations.cache_orders import AS_DECLARED, stored
from operations.cache_store import Entry

SETTLING_SECONDS = 1.0  # what a commit has changed may be served old for so long


class NoSuchCache(LookupError):
    """There is none of that name; says which there are."""


class Unloadable(Exception):
    """A value can't be loaded to be compared; says which, and why."""


@dataclass(frozen=True)
class Compared:
    """A cached value beside the data it was made of."""

    name: str
    verdict: str  # "same", "different", "not cached" or "marked"
    stored_at: datetime | None = None  # by the cache's clock
    changed_at: datetime | None = None  # the data; None: the cache does not say
    left_seconds: float | None = None
    is_stale: bool = False  # past its fresh time

    def told(self) -> dict[str, Any]:
        """Give it as JSON."""
        return {
            "name": self.name,
            "verdict": self.verdict,
            "stored_at": None if self.stored_at is None else self.stored_at.isoformat(),
            "data_changed_at": None if self.changed_at is None else self.changed_at.isoformat(),
            "left_seconds": self.left_seconds,
            "past_its_fresh_time": self.is_stale,
        }


def told(cached: Cached, *, hours: int = KEPT_HOURS) -> dict[str, Any]:
    """Tell of one cache as JSON: declaration, orders, keys by job, figures of the last `hours`.

    Raises:
        redis.exceptions.RedisError: the cache is away.
    """
    order = stored().get(cached.name, AS_DECLARED)
    seen = figures(cached.name, hours=hours)
    made = seen.rebuilds + seen.failed
    return {
        "cache": cached.name,
        "of": [*cached.parts, *cached.variants],
        "fresh_seconds": cached.soft_declared if order.soft_seconds is None else order.soft_seconds,
        "kept_seconds": cached.ttl_seconds,
        "absent_seconds": cached.absent_seconds,
        "jitter": cached.jitter if order.jitter is None else order.jitter,
        "revalidate": order.revalidate,
        "strict": cached.strict,
        "ordered": order != AS_DECLARED,
        "stale_after": stale_after(cached),
        "values": sum(1 for _ in cache_store.keys_of("value", cached.name)),
        "hours": hours,
        "reads": seen.reads,
        "hit_ratio": seen.share(seen.hits),
        "stale_ratio": seen.share(seen.stale),
        "miss_ratio": seen.share(seen.misses),
        "error_ratio": seen.share(seen.errors),
        "rebuilds": seen.rebuilds,
        "rebuilds_failed": seen.failed,
        "rebuild_seconds_mean": round(seen.rebuild_seconds / made, 6) if made else None,
        "rebuild_seconds_max": round(seen.rebuild_seconds_max, 6) if made else None,
        "invalidations": seen.invalidations,
        "last_invalidated_at": _last_told(cached),
    }


def stale_after(cached: Cached) -> dict[str, list[str]]:
    """Give the keys that each job makes stale: {job: [template]}."""
    found = {
        job.name: [each for each in job.invalidates if cache_names.kind_of(each) == cached.name]
        for job in jobs.every()
    }
    return {job: templates for job, templates in found.items() if templates}


def page(caches: Iterable[Cached]) -> str:
    """Write the table of docs/caches.md: each cache, what it shows, and which job makes which key stale."""
    head = "| cache | shows | told by | fresh, kept | stale after |\n|---|---|---|---|---|"
    return "\n".join([head, *(_row(cached) for cached in caches)])


def _row(cached: Cached) -> str:
    shows = (cached.load.__doc__ or "").strip().partition("\n")[0]
    stale = [f"`{job}`: `{each}`" for job, templates in stale_after(cached).items() for each in templates]
    parts = ", ".join(f"`{part}`" for part in (*cached.parts, *cached.variants))
    times = f"{cached.soft_declared:g} s, {cached.ttl_seconds:g} s{', strict' if cached.strict else ''}"
    return f"| `{cached.name}` | {shows} | {parts} | {times} | {'<br>'.join(stale) or 'no job'} |"


def compare(cached: Cached, parts: list[str] | None, *, most: int) -> Iterator[Compared]:
    """Hold cached values against what their loader gives now; those of `parts`, or up to `most` of all.

    What differs is looked at again after a second, in which a commit may tell the cache.

    Raises:
        redis.exceptions.RedisError: the cache is away.
        Unloadable: the loader takes no such parts, or fails.
    """
    names = _stored_names(cached, most) if parts is None else iter([tuple(parts)])
    for each in names:
        seen = _compared(cached, each)
        if seen.verdict == "different":
            time.sleep(SETTLING_SECONDS)
            seen = _compared(cached, each)
        yield seen


def _compared(cached: Cached, parts: tuple[str, ...]) -> Compared:
    place = cached.place(parts)
    found = cache_store.read(place)
    changed_at = None if cached.changed_at is None else cached.changed_at(*parts)
    if found.entry is None:
        return Compared(place.name, "marked" if found.is_marked else "not cached", changed_at=changed_at)
    return Compared(
        place.name,
        "same" if _is_the_same(cached, found.entry, parts) else "different",
        stored_at=_now() - timedelta(seconds=found.entry.age_seconds),
        changed_at=changed_at,
        left_seconds=round(found.entry.left_seconds, 1),
        is_stale=cached.stale_for(found.entry) > 0,
    )


def _is_the_same(cached: Cached, entry: Entry, parts: tuple[str, ...]) -> bool:
    try:
        now = cached.loaded(*parts)
    except Exception as error:  # whatever a loader raises; a person is told which value it was
        raise Unloadable(f"{entry.of} can't be loaded: {type(error).__name__}: {error}") from error
    return entry.is_absent if now is ABSENT else not entry.is_absent and bool(entry.value == now)


def _stored_names(cached: Cached, most: int) -> Iterator[tuple[str, ...]]:
    """Name what is stored; what is under an old revision is stored too, so each once."""
    seen: set[str] = set()
    for entry in cache_store.entries(cached.name):
        if len(seen) >= most:
            return
        if entry.of not in seen:
            seen.add(entry.of)
            yield tuple(cache_names.parts_of(entry.of))


def _last_told(cached: Cached) -> str | None:
    at = cache_store.client().get(cache_store.told_key(cached.name))
    return None if at is None else datetime.fromtimestamp(int(float(at)) / 1_000, UTC).isoformat()


def _now() -> datetime:
    seconds, micros = cache_store.client().time()
    return datetime.fromtimestamp(seconds + micros / 1e6, UTC)


def named(kind: str) -> list[Cached]:
    """Give the cache of that name, or all for an empty one.

    Raises:
        NoSuchCache: there is none of that name.
    """
    every = cache_kinds.every()
    found = [cached for cached in every if kind in ("", cached.name)]
    if not found:
        names = ", ".join(cached.name for cached in every)
        raise NoSuchCache(f"no cache is called {kind!r}; there are {names}")
    return found
