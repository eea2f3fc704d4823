"""The cache's own Redis: values under a revision, locks for rebuilding them, and what to do when it is away.

django-redis is the connection. Values are JSON and nothing else; a key has a readable beginning and a digest.
"""

import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from hashlib import sha1, sha256
from typing import Any, NamedTuple, TypeVar

from django.conf import settings
from django_redis import get_redis_connection
from redis.exceptions import NoScriptError, RedisError

from operations import statements

log = logging.getLogger(__name__)

# Note [A revision is a nonce]
# Each value is stored under a key that contains its revision, a random nonce kept beside it. A reader takes
# the revision first, then loads; a writer replaces it after commit. So what a slow reader stores goes under a
# revision that nobody asks for any more, and a flush brings back neither: the next reader makes up a new one.

LONGEST_SECONDS = 3_600  # no cached value may live longer
REVISION_SECONDS = 2 * LONGEST_SECONDS  # a revision must not end before what is stored under it
DIRTY_SECONDS = 60  # a writer that marked a value and died leaves it marked for so long
AWAY = (RedisError, OSError)

# The revision, made up if there is none; and, unless a writer has marked it, the value under it.
READ = """
local revision = redis.call('GET', KEYS[1])
if not revision then
    redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
    return {ARGV[1], false, 0}
end
if redis.call('EXISTS', KEYS[2]) == 1 then
    return {revision, false, 1}
end
return {revision, redis.call('GET', ARGV[3] .. revision), 0}"""
FREE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end"

Result = TypeVar("Result")


class Found(NamedTuple):
    """What the cache has under a name."""

    revision: str
    entry: dict[str, Any] | None  # {"value"} or {"absent"}, and {"soft_until"}
    dirty: bool  # a writer is about to change it: load, and store nothing


def read(name: str, *, schema: int) -> Found:
    """Read revision and value in one round trip. A value that is no JSON of ours is none.

    Raises:
        redis.exceptions.RedisError: the cache is away, slow, full or read-only.
    """
    nonce = secrets.token_hex(8)
    keys, values = [_key("revision", name), _key("dirty", name)], [nonce, REVISION_SECONDS]
    revision, stored, dirty = _script(READ, keys, [*values, _value_key(name, schema, "")])
    return Found(revision.decode(), _entry(stored), bool(dirty))


def store(name: str, revision: str, entry: dict[str, Any], *, schema: int, seconds: float) -> None:
    text = json.dumps(entry, separators=(",", ":"), allow_nan=False)
    _client().set(_value_key(name, schema, revision), text, px=max(1, int(seconds * 1_000)))


def invalidate(name: str) -> None:
    """Replace the revision of `name`, and take back the mark that it is about to change.

    Raises:
        redis.exceptions.RedisError: the cache cannot be reached; the value may still be served.
    """
    pipe = _client().pipeline(transaction=True)
    pipe.set(_key("revision", name), secrets.token_hex(8), ex=REVISION_SECONDS)
    pipe.delete(_key("dirty", name))
    pipe.execute()


def mark(name: str) -> None:
    """Tell readers that a value is about to change; they load it themselves from now on."""
    _client().set(_key("dirty", name), "1", ex=DIRTY_SECONDS)


def begin_rebuild(name: str, revision: str, *, seconds: float) -> str | None:
    """Be the one who rebuilds a value, for at most so long; give a token. None: another is."""
    token = secrets.token_hex(8)
    key = _key("rebuild", f"{name}:{revision}")
    return token if _client().set(key, token, nx=True, px=int(seconds * 1_000)) else None


def end_rebuild(name: str, revision: str, token: str) -> None:
    _script(FREE, [_key("rebuild", f"{name}:{revision}")], [token])


def cool_down(name: str, revision: str, *, seconds: float) -> None:
    """Let nobody try to rebuild what has just failed."""
    _client().set(_key("cool", f"{name}:{revision}"), "1", px=int(seconds * 1_000))


def is_cooling(name: str, revision: str) -> bool:
    return bool(_client().exists(_key("cool", f"{name}:{revision}")))


KINDS = ("revision", "dirty", "value", "rebuild", "cool")


def count(cache: str) -> int:
    """Count the values of a cache; some may be stale."""
    return sum(1 for _ in _keys_of("value", cache))


def clear(cache: str) -> int:
    """Delete all keys of a cache, and no others; give how many."""
    found = [key for kind in KINDS for key in _keys_of(kind, cache)]
    return int(_client().delete(*found)) if found else 0


def _keys_of(kind: str, cache: str) -> Iterator[bytes]:
    found: Iterator[bytes] = _client().scan_iter(f"{_beginning(kind, cache)}:*", count=1_000)
    return found


class Breaker:
    """Leaves a cache alone that does not answer, in this process."""

    FAILURES = 3  # in a row
    PAUSE_SECONDS = 5.0
    LOOK_SECONDS = 1.0  # between two looks whether it may be believed again

    def __init__(self) -> None:
        """Begin closed."""
        self._lock = threading.Lock()
        self.begin()

    def begin(self) -> None:
        """Forget everything, as for a test."""
        self._failures, self._open_until = 0, 0.0
        self._doubted_since: Any = None  # the database's clock when the cache answered again
        self._look_at = 0.0

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
        if self._failures < self.FAILURES and self._doubted_since is None:
            return False
        if time.monotonic() < self._open_until:
            return True
        return self._still_doubted()

    def _failed(self) -> None:
        with self._lock:
            self._failures += 1
            if self._failures >= self.FAILURES:
                self._open_until = time.monotonic() + self.PAUSE_SECONDS
                self._doubted_since = None
                log.warning("cache.left_alone", extra={"seconds": self.PAUSE_SECONDS})

    def _still_doubted(self) -> bool:
        """Ask whether all is told to the cache that was owed before it answered again; once a second."""
        with self._lock:
            if time.monotonic() < self._look_at:
                return True
            self._look_at = time.monotonic() + self.LOOK_SECONDS
        if self._doubted_since is None and not self._answers():
            return True
        row = statements.row(OWED, {"since": self._doubted_since})
        if row is not None and row[0]:
            return True
        self._doubted_since, self._failures = None, 0
        log.warning("cache.back")
        return False

    def _answers(self) -> bool:
        try:
            _client().ping()
        except AWAY:
            self._failed()
            return False
        row = statements.row("SELECT clock_timestamp()", {})
        self._doubted_since = row and row[0]
        return True


OWED = """
    SELECT EXISTS (SELECT FROM operations_aftercommit
        WHERE created_at < %(since)s::timestamptz AND invalidate <> '[]')"""


def _entry(stored: bytes | None) -> dict[str, Any] | None:
    if stored is None:
        return None
    try:
        entry = json.loads(stored)
    except ValueError:
        entry = None
    if isinstance(entry, dict) and ("value" in entry or "absent" in entry):
        return entry
    log.warning("cache.unreadable")  # it is overwritten
    return None


def _script(sql: str, keys: list[str], values: list[Any]) -> Any:
    """Run a script by its digest; a server that was started anew has to be told it again."""
    digest, client = _digests.setdefault(sql, _sha1(sql)), _client()
    try:
        return client.evalsha(digest, len(keys), *keys, *values)
    except NoScriptError:
        return client.eval(sql, len(keys), *keys, *values)


_digests: dict[str, str] = {}


def _sha1(text: str) -> str:
    return sha1(text.encode(), usedforsecurity=False).hexdigest()


def _client() -> Any:
    return get_redis_connection("default")


def _value_key(name: str, schema: int, revision: str) -> str:
    return f"{_key('value', name)}:{schema}:{revision}"


def _key(kind: str, name: str) -> str:
    """Give the key of something about a cached value, whose name is its cache's and its parts."""
    return f"{_beginning(kind, name)}:{sha256(name.encode()).hexdigest()[:32]}"


def _beginning(kind: str, name: str) -> str:
    return f"{settings.KEY_PREFIX}:{kind}:{':'.join(name.split(':')[:2])}"
