"""The cache's own Redis: values under a revision, locks for rebuilding them, marks of writers.

django-redis is the connection. Values are JSON and nothing else.
"""

import json
import logging
import random
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha1
from typing import Any, NamedTuple, TypeVar

from django.conf import settings
from django_redis import get_redis_connection
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import NoScriptError, RedisError

from operations import cache_names, metrics
from operations.cache_names import Place
from operations.cache_scripts import BOOK, GIVE_UP, INVALIDATE, LEAD, LET_GO, MARK, READ, STORE

log = logging.getLogger(__name__)

LONGEST_SECONDS = 3_600  # no cached value may live longer
AWAY = (RedisError, OSError)
UNREADABLE = (ValueError, TypeError, KeyError, OverflowError, RecursionError)  # whatever somebody stored
RUNS_MET = 4  # runs of the server in one call, after which it is taken for away

Result = TypeVar("Result")


class Entry(NamedTuple):
    """A stored value."""

    of: str  # its name
    value: Any  # JSON; None if absent
    is_absent: bool
    kept_seconds: float  # how long it was to be kept
    left_seconds: float  # and how long it will be
    roll: float  # 0 to 1: by how much of the jitter its times are stretched

    @property
    def age_seconds(self) -> float:
        """Tell how long ago it was stored, by the cache's own clock."""
        return self.kept_seconds - self.left_seconds


class Found(NamedTuple):
    """What the cache has in a place.

    `turn`, of a value: 1 if it is not being rebuilt. Of none: 1 if this reader is to rebuild it, 0 if another
    does; less if that has just failed, and nobody is to try for so many seconds.
    """

    revision: str
    is_marked: bool  # a writer is about to change it: load, and store nothing
    entry: Entry | None
    turn: float = 0.0


def read(place: Place, *, strict: bool = True, token: str = "", lead_seconds: float = 0.0) -> Found:
    """Read revision and value in one round trip; with a token, lead at once where there is no value.

    A value that is no JSON of ours is none. Marks are looked for if it is `strict`.

    Raises:
        redis.exceptions.RedisError: the cache is away, slow, full or read-only.
    """
    marks = [place.marks] if strict else []
    leading = [token, _ms(lead_seconds)] if token else []

    def ask(redis: Any, run: str) -> Any:
        seconds = int(LONGEST_SECONDS * random.uniform(1.5, 3))  # noqa: S311 (so that revisions end apart)
        values = [new_name(), seconds, place.value(""), place.rebuild(""), *leading]
        return script(READ, [f"{place.revision}:{run}", *marks], values, redis)

    revision, marked, stored, left_ms, turn = _in_one_run(ask)
    entry = _entry(stored, left_ms, place.name)
    found = Found(revision.decode(), bool(marked), entry, _turn(turn))
    if stored is None or entry is not None or not token:
        return found
    # It is to be overwritten, which the script can't tell.
    return found._replace(turn=lead(place, found.revision, token, seconds=lead_seconds))


def lead(place: Place, revision: str, token: str, *, seconds: float) -> float:
    """Try to be the one who rebuilds a value, for at most so long; give a turn as `Found` has."""
    return _turn(script(LEAD, [place.rebuild(revision)], [token, _ms(seconds)]))


def new_name() -> str:
    """Make up a name that no other process makes up. It is no secret: whoever may write here may do worse."""
    return f"{random.getrandbits(64):016x}"


def store(place: Place, revision: str, token: str, text: str, *, seconds: float) -> bool:
    """Store what was loaded, and lead no more. False: the lead was lost, and nothing is stored."""
    return bool(script(STORE, [place.value(revision), place.rebuild(revision)], [token, text, _ms(seconds)]))


def give_up(place: Place, revision: str, token: str, *, seconds: float) -> None:
    """Lead no more, and let nobody try for so long to rebuild what has just failed."""
    script(GIVE_UP, [place.rebuild(revision)], [token, _ms(seconds)])


def let_go(place: Place, token: str) -> None:
    """Lead no more, if one does, without knowing under which revision."""
    values = [place.rebuild(""), token]
    _in_one_run(lambda redis, run: script(LET_GO, [f"{place.revision}:{run}"], values, redis))


def entry_text(name: str, value: str | None, *, seconds: float, roll: float) -> str:
    """Write down what `read` reads: `value` is JSON, or None for what is not there."""
    what = '"absent":true' if value is None else f'"value":{value}'
    return f'{{"of":{json.dumps(name)},"kept":{seconds},"roll":{roll:.4f},{what}}}'


def invalidate(namespaces: Iterable[str], *, writer: str) -> None:
    """Let what is stored under these be asked for no more, all at once, and take back this writer's marks.

    Raises:
        redis.exceptions.RedisError: the cache cannot be reached; the values may still be served.
    """
    places = [(Place(each), told_key(cache_names.kind_of(each))) for each in namespaces]

    def ask(redis: Any, run: str) -> Any:
        keys = [(f"{place.revision}:{run}", place.marks, told) for place, told in places]
        return script(INVALIDATE, [key for three in keys for key in three], [writer], redis)

    _in_one_run(ask)


def mark(namespace: str, *, writer: str, seconds: float) -> None:
    """Tell readers that values are about to change; they load them themselves, for at most so long."""
    place = Place(namespace)
    values = [writer, _ms(seconds)]
    _in_one_run(lambda redis, run: script(MARK, [f"{place.revision}:{run}", place.marks], values, redis))


def unmark(namespace: str, *, writer: str) -> None:
    """Take back a writer's mark: it has changed nothing."""
    client().zrem(Place(namespace).marks, writer)


def answers() -> None:
    """Find out whether the server is there.

    Raises:
        redis.exceptions.RedisError: it is not.
    """
    client().ping()


def book(key: str, amounts: dict[str, float], *, seconds: int) -> None:
    """Add to the figures of a book, which is kept for so long after it was written last."""
    told = [part for field, amount in amounts.items() for part in (field, amount)]
    script(BOOK, [key], [seconds, *told])


# A mark stays: it is a promise of a writer that is about to commit.
CLEARED = ("revision", "value", "rebuild")


def clear(kind: str) -> int:
    """Delete all values of a kind and what belongs to them, and nothing else; give how many values."""
    keys = {what: list(keys_of(what, kind)) for what in CLEARED}
    for each in keys.values():
        for first in range(0, len(each), 1_000):
            client().unlink(*each[first : first + 1_000])
    return len(keys["value"])


def entries(kind: str) -> Iterator[Entry]:
    """Give what is stored of a kind, whether or not it is still asked for."""
    for key in keys_of("value", kind):
        left_ms, text = client().pttl(key), client().get(key)
        entry = _entry(text, left_ms, None)
        if entry is not None:
            yield entry


def keys_of(what: str, kind: str) -> Iterator[bytes]:
    found: Iterator[bytes] = client().scan_iter(f"{cache_names.beginning(what, kind)}*", count=1_000)
    return found


def told_key(kind: str) -> str:
    """Give the key of when a kind was last made stale: milliseconds since 1970, by the server's clock."""
    return cache_names.beginning("told", kind).rstrip(":")


def client() -> Any:
    """Give the connection to the cache. To ask django-redis for it each time is a tenth of a read."""
    global _connected
    here = settings.CACHES["default"]
    to, connected = _connected
    if to is not here:
        connected = get_redis_connection("default")
        _connected = (here, connected)
    return connected


def script(text: str, keys: list[str], values: list[Any], redis: Any = None) -> Any:
    """Run a script by its digest; a server that was started anew has to be told it again."""
    digest, redis = _digests[text], client() if redis is None else redis
    try:
        return redis.evalsha(digest, len(keys), *keys, *values)
    except NoScriptError:
        return redis.eval(text, len(keys), *keys, *values)


_connected: tuple[Any, Any] = (None, None)
_digests = {
    text: sha1(text.encode(), usedforsecurity=False).hexdigest()
    for text in (READ, LEAD, STORE, GIVE_UP, LET_GO, MARK, INVALIDATE, BOOK)
}


def _in_one_run(ask: Callable[[Any, str], Result]) -> Result:
    """Ask with the server's run in the key of the revision; again, if another run has answered."""
    redis = client()
    pool = redis.connection_pool
    for _ in range(RUNS_MET):
        run = getattr(pool, "run", "")
        result = ask(redis, run)
        if getattr(pool, "run_met", "") == run:
            return result
    raise NoConnection("the server of the cache is another each time")


def _entry(stored: bytes | None, left_ms: int, name: str | None) -> Entry | None:
    if stored is None:
        return None
    try:
        return _understood(json.loads(stored), left_ms / 1_000, name)
    except UNREADABLE as error:
        kind = cache_names.kind_of(name or "")
        metrics.CACHE_UNREADABLE.labels(kind).inc()
        log.warning("cache.unreadable", extra={"cache": kind, "error": type(error).__name__})
        return None  # so it is overwritten


def _understood(told: Any, left_seconds: float, name: str | None) -> Entry:
    if name not in (None, told["of"]):
        raise ValueError("this is another's")
    absent = told.get("absent") is True
    value = None if absent else told["value"]
    return Entry(told["of"], value, absent, float(told["kept"]), left_seconds, float(told["roll"]))


def _turn(told: int) -> float:
    return told if told >= 0 else told / 1_000


def _ms(seconds: float) -> int:
    return max(1, int(seconds * 1_000))
