"""What writers say to the cache: that values are about to change, that they have, that they have not."""

import logging
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.db.models.functions import Now

from operations import cache_kinds, cache_names, cache_store, metrics
from operations.cache_books import book
from operations.cache_store import AWAY
from operations.models import AfterCommit

log = logging.getLogger(__name__)

MARK_SECONDS = 60.0  # how long a writer's mark outlives what it may still take to commit
AT_ONCE = 500  # names in one call of the cache

# Note [All that a transaction changes is told together]
# Each change of a transaction registers a callback, and the first to run tells the cache of all: one after
# the other would take longer than readers may be served what is old. Names of savepoints that were rolled
# back are told as well, which costs a load and is never wrong.
_here = threading.local()


def invalidate(names: Sequence[str], *, writer: str = "") -> None:
    """Make what is called so (a cache's name and its parts, see cache_names) stale for every reader, at once.

    Raises:
        redis.exceptions.RedisError: the cache cannot be reached; the values may still be served.
    """
    kinds = [cache_names.kind_of(name) for name in names]
    try:
        for some in _portions(names):
            cache_store.invalidate(some, writer=writer)
    except AWAY:
        for kind in kinds:
            metrics.bound(metrics.CACHE_INVALIDATIONS, kind, "error").inc()
        raise
    for kind in kinds:
        metrics.bound(metrics.CACHE_INVALIDATIONS, kind, "ok").inc()
        book.count(kind, invalidations=1)


def about_to_change(names: Iterable[str], *, writer: str, seconds: float) -> None:
    """Mark what is strict of `names` before the commit that changes it, which comes within so many seconds.

    Raises:
        redis.exceptions.RedisError: the cache cannot be told, so nothing may be committed.
    """
    for name in _strict(names):
        cache_store.mark(name, writer=writer, seconds=seconds + MARK_SECONDS)


def unchanged(names: Iterable[str], *, writer: str) -> None:
    """Take back the marks of a writer that has certainly committed nothing; else they end by themselves."""
    for name in _strict(names):
        try:
            cache_store.unmark(name, writer=writer)
        except AWAY as error:
            log.warning("cache.away", extra={"error": type(error).__name__})


def owe(name: str) -> None:
    """Write down, in the open transaction, that `name` is stale when it commits; then tell the cache.

    Raises:
        redis.exceptions.RedisError: it is strict, and the cache cannot be told before the commit.
    """
    writer = uuid.uuid4()
    about_to_change([name], writer=writer.hex, seconds=0)
    row = AfterCommit.objects.create(
        invalidate=[name],
        claim_token=writer,
        run_at=Now() + timedelta(seconds=settings.RELAY_PERIOD_SECONDS / 2),
    )
    pending: list[tuple[int, str, str]] = _here.__dict__.setdefault("pending", [])
    pending.append((row.pk, name, writer.hex))
    # See Note [Robust callbacks have names].
    transaction.on_commit(lambda: _tell_all(), robust=True)


def _tell_all() -> None:
    """Tell the cache of all names of the transaction; what it can't be told stays owed to it."""
    pending, _here.pending = _here.__dict__.get("pending", []), []
    if not pending:
        return
    ids, names, writers = zip(*pending, strict=True)
    strict = set(_strict(names))
    try:
        invalidate(list(dict.fromkeys(names)))
        for name, writer in zip(names, writers, strict=True):
            if name in strict:
                cache_store.unmark(name, writer=writer)
    except AWAY as error:
        log.warning("after_commit.put_off", extra={"error": type(error).__name__})
        return
    AfterCommit.objects.filter(id__in=ids).delete()


def _portions(names: Sequence[str]) -> Iterator[Sequence[str]]:
    return (names[first : first + AT_ONCE] for first in range(0, len(names), AT_ONCE))


def _strict(names: Iterable[str]) -> list[str]:
    kinds = {name: cache_kinds.find(cache_names.kind_of(name)) for name in names}
    return [name for name, cached in kinds.items() if cached is not None and cached.strict]
