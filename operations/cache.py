"""Cached values that a commit can make stale at once, and that no slow reader can make old again."""

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from django.core.cache import cache as store
from redis.exceptions import RedisError

from operations import metrics

log = logging.getLogger(__name__)

# Note [A revision is a nonce]
# Each value is stored under a key that contains its revision, a random nonce kept beside it. A reader takes
# the revision first, then loads; a writer replaces it after commit. So what a slow reader stores goes under a
# revision that nobody asks for any more, and a flush brings back neither: the next reader makes up a new one.

SCHEMA = 1  # of the stored form; another number is another key
REVISION_TTL = 2  # times the value's: a revision must not end before what is stored under it


@dataclass(frozen=True)
class Cached:
    """A kind of cached value. `load(*parts)` gives it as JSON; `ttl_seconds` bounds its age at worst."""

    name: str
    load: Callable[..., Any]
    ttl_seconds: int

    def get(self, *parts: object) -> Any:
        """Give the value for `parts`, from the cache or loaded; with the cache away, loaded."""
        name = ":".join([self.name, *map(str, parts)])
        try:
            key = self._key(name)
            stored = store.get(key)
        except (RedisError, OSError) as error:
            return self._without_cache(error, *parts)
        if isinstance(stored, dict):
            metrics.CACHE_REQUESTS.labels(self.name, "hit").inc()
            return stored["value"]
        metrics.CACHE_REQUESTS.labels(self.name, "miss").inc()
        value = self.load(*parts)
        _store(key, {"value": value}, self.ttl_seconds)
        return value

    def _key(self, name: str) -> str:
        revision = store.get(_revision_key(name))
        if revision is None:
            store.add(_revision_key(name), secrets.token_hex(8), self.ttl_seconds * REVISION_TTL)
            # Flushed in between, there is none again: one that nobody else will ask for does no harm.
            revision = store.get(_revision_key(name)) or secrets.token_hex(8)
        return f"value:{SCHEMA}:{self.name}:{_digest(f'{name}:{revision}')}"

    def _without_cache(self, error: Exception, *parts: object) -> Any:
        metrics.CACHE_REQUESTS.labels(self.name, "error").inc()
        log.warning("cache.away", extra={"cache": self.name, "error": type(error).__name__})
        return self.load(*parts)


def invalidate(name: str) -> None:
    """Make the value called `name` (a cache's name and its parts, joined by colons) stale for every reader.

    Raises:
        redis.exceptions.RedisError: the cache cannot be reached; the value may still be served.
    """
    # No reader's own revision can be older than this one's life, so it may end with the longest value's.
    store.set(_revision_key(name), secrets.token_hex(8), LONGEST_SECONDS * REVISION_TTL)
    metrics.CACHE_INVALIDATIONS.labels(name.rpartition(":")[0], "ok").inc()


LONGEST_SECONDS = 3_600  # no cached value may live longer


def _store(key: str, value: Any, ttl_seconds: int) -> None:
    try:
        store.set(key, value, ttl_seconds)
    except (RedisError, OSError) as error:
        log.warning("cache.away", extra={"error": type(error).__name__})


def _revision_key(name: str) -> str:
    return f"revision:{name.partition(':')[0]}:{_digest(name)}"


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:32]
