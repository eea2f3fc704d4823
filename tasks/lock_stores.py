"""Where locks are kept: in Redis, which is cheap, or in the database, which nobody flushes. One face.

A lock names the claim that holds it by its token, its operation, its worker and since when. Taking sets it
with its end in one command; keeping and freeing compare the token first, in one command too.
"""

import functools
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol
from uuid import UUID

import redis
from django.conf import settings
from django.db import DatabaseError, InterfaceError
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from operations import statements

RENEW = """local held = redis.call('get', KEYS[1])
if held and string.sub(held, 1, 36) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end
return 0"""
FREE = """local held = redis.call('get', KEYS[1])
if held and string.sub(held, 1, 36) == ARGV[1] then return redis.call('del', KEYS[1]) end
return 0"""
# Frees like FREE, and says whether somebody may wait for the lock. Nobody does if it was ours until now and
# was not asked for lately.
HAND_OVER = """local held = redis.call('get', KEYS[1])
if not held or string.sub(held, 1, 36) ~= ARGV[1] then return 1 end
redis.call('del', KEYS[1])
return redis.call('exists', KEYS[2])"""
ADOPT = """local held = redis.call('get', KEYS[1])
if held and string.sub(held, 38, 73) ~= string.sub(ARGV[1], 38, 73) then return 0 end
redis.call('set', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1"""

LASTS = "expires_at > clock_timestamp()"
END = "clock_timestamp() + make_interval(secs => %(ttl)s)"
TAKE_ROW = f"""
    INSERT INTO operations_resourcelock AS held (resource, token, operation_id, worker, since, expires_at)
    VALUES (%(resource)s, %(token)s, %(operation)s, %(worker)s, clock_timestamp(), {END})
    ON CONFLICT (resource) DO UPDATE SET token = excluded.token, operation_id = excluded.operation_id,
        worker = excluded.worker, since = excluded.since, expires_at = excluded.expires_at
    WHERE NOT held.{LASTS} OR (%(adopt)s AND held.operation_id = excluded.operation_id)
    RETURNING resource"""  # noqa: S608 (only constants are put in)
RENEW_ROW = f"""
    UPDATE operations_resourcelock SET expires_at = {END}
    WHERE resource = %(resource)s AND token = %(token)s AND {LASTS} RETURNING resource"""  # noqa: S608
FREE_ROW = f"""
    DELETE FROM operations_resourcelock
    WHERE resource = %(resource)s AND token = %(token)s RETURNING {LASTS}"""  # noqa: S608
HOLDERS = f"""
    SELECT resource, token::text, operation_id::text, worker,
        to_char(since AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
    FROM operations_resourcelock WHERE {LASTS} AND (%(resource)s = '' OR resource = %(resource)s)
    ORDER BY resource"""  # noqa: S608


class StoreAway(Exception):
    """The lock store does not answer, so nobody can know who holds what."""


class Holder(NamedTuple):
    """Who holds a lock."""

    token: str
    operation_id: str
    worker: str
    since: str  # UTC, ISO 8601

    def __str__(self) -> str:
        return f"{self.operation_id} on {self.worker} since {self.since}"


class Store(Protocol):
    """A place for locks. Every method may raise StoreAway."""

    def set_if_free(self, resource: str, holder: Holder) -> bool: ...
    def adopt(self, resource: str, holder: Holder) -> bool: ...
    def renew(self, resource: str, token: UUID) -> bool: ...
    def free(self, resource: str, token: UUID) -> bool: ...
    def hand_over(self, resource: str, token: UUID) -> bool: ...
    def ask_for(self, resource: str) -> None: ...
    def holder(self, resource: str) -> Holder | None: ...
    def every(self) -> Iterator[tuple[str, Holder]]: ...


class InRedis:
    """Locks as keys that expire; a value is "token|operation|worker|since"."""

    def set_if_free(self, resource: str, holder: Holder) -> bool:
        return bool(self._ask(lambda: _client().set(_key(resource), "|".join(holder), nx=True, px=_ttl_ms())))

    def adopt(self, resource: str, holder: Holder) -> bool:
        return self._run(ADOPT, resource, "|".join(holder), str(_ttl_ms()))

    def renew(self, resource: str, token: UUID) -> bool:
        return self._run(RENEW, resource, str(token), str(_ttl_ms()))

    def free(self, resource: str, token: UUID) -> bool:
        return self._run(FREE, resource, str(token))

    def hand_over(self, resource: str, token: UUID) -> bool:
        keys = [_key(resource), _asked_key(resource)]
        return bool(self._ask(lambda: _registered(HAND_OVER)(keys=keys, args=[str(token)])))

    def ask_for(self, resource: str) -> None:
        lasts_ms = int(settings.LOCK_POLL_SECONDS * 3 * 1000)  # who waits asks again at every poll
        self._ask(lambda: _client().set(_asked_key(resource), 1, px=lasts_ms))

    def holder(self, resource: str) -> Holder | None:
        held = self._ask(lambda: _client().get(_key(resource)))
        return None if held is None else Holder(*held.decode().split("|", 3))

    def every(self) -> Iterator[tuple[str, Holder]]:
        for key in self._ask(lambda: sorted(_client().scan_iter(match=_key("*"), count=1000))):
            resource = key.decode().removeprefix(_key(""))
            if (holder := self.holder(resource)) is not None:
                yield resource, holder

    def _run(self, source: str, resource: str, *arguments: str) -> bool:
        return bool(self._ask(lambda: _registered(source)(keys=[_key(resource)], args=arguments)))

    def _ask(self, question: Any) -> Any:
        try:
            return question()
        except (RedisError, OSError) as error:
            raise StoreAway(f"the lock store does not answer: {type(error).__name__}") from error


class InDatabase:
    """Locks as rows, their end by the database's clock."""

    def set_if_free(self, resource: str, holder: Holder) -> bool:
        return self._take(resource, holder, adopt=False)

    def adopt(self, resource: str, holder: Holder) -> bool:
        return self._take(resource, holder, adopt=True)

    def renew(self, resource: str, token: UUID) -> bool:
        values = {"resource": resource, "token": token, "ttl": settings.LOCK_TTL_SECONDS}
        return bool(self._ask(RENEW_ROW, values))

    def free(self, resource: str, token: UUID) -> bool:
        return (True,) in self._ask(FREE_ROW, {"resource": resource, "token": token})

    def hand_over(self, resource: str, token: UUID) -> bool:
        self.free(resource, token)
        return True  # who waits is one more question to the same database

    def ask_for(self, resource: str) -> None:
        """Leave no mark: hand_over needs none."""

    def holder(self, resource: str) -> Holder | None:
        found = self._ask(HOLDERS, {"resource": resource})
        return Holder(*found[0][1:]) if found else None

    def every(self) -> Iterator[tuple[str, Holder]]:
        for resource, *held in self._ask(HOLDERS, {"resource": ""}):
            yield resource, Holder(*held)

    def _take(self, resource: str, holder: Holder, *, adopt: bool) -> bool:
        values = {
            "resource": resource,
            "token": UUID(holder.token),
            "operation": UUID(holder.operation_id),
            "worker": holder.worker[:100],
            "ttl": settings.LOCK_TTL_SECONDS,
            "adopt": adopt,
        }
        return bool(self._ask(TAKE_ROW, values))

    def _ask(self, sql: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        try:
            return statements.rows(sql, values)
        except (DatabaseError, InterfaceError) as error:
            raise StoreAway(f"the lock store does not answer: {type(error).__name__}") from error


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@functools.cache
def _registered(source: str) -> redis.commands.core.Script:
    return _client().register_script(source)


@functools.cache
def _client() -> redis.Redis:
    """Keep one client a process, one that gives up fast: redis-py's own default is ten tries."""
    return redis.Redis.from_url(
        settings.LOCK_URL,
        socket_timeout=settings.REDIS_TIMEOUT_SECONDS,
        socket_connect_timeout=settings.REDIS_TIMEOUT_SECONDS,
        retry=Retry(NoBackoff(), 1),
    )


def forget_connections() -> None:
    """Connect anew at the next question, as after settings have changed."""
    _registered.cache_clear()
    _client.cache_clear()


def _key(resource: str) -> str:
    return f"{settings.KEY_PREFIX}:lock:{resource}"


def _asked_key(resource: str) -> str:
    return f"{settings.KEY_PREFIX}:asked:{resource}"


def _ttl_ms() -> int:
    return int(settings.LOCK_TTL_SECONDS * 1000)
