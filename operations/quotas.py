"""How many requests a user may make in a minute, counted in Redis for all processes together.

A quota protects the service from one client, and nothing depends on it. So Redis away means that each process
counts for itself, and that nobody is turned away for it.
"""

import functools
import logging
import math
import threading
import time
from typing import NamedTuple

import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

log = logging.getLogger(__name__)

WINDOW_SECONDS = 60
LARGEST_LEASE = 10  # requests that a process may count by itself before it asks again
LEASE_SHARE = 20  # and of what a user has left, one part in so many: close to the end each is counted singly
LEASE_SECONDS = 5.0  # what was leased and not used by then is given back with the next question
REST_SECONDS = 5.0  # after a failure Redis is left alone
MOST_REMEMBERED = 10_000  # users a process; at that many it forgets them all and asks again
LOCKS = 64  # of a quota in a process, each for some of the users

# Note [A window begins with its first request]
# One counter a user and quota, that ends a minute after it was made: no two users' windows end together, and
# what the headers say (so many left, so many seconds) is what the counter holds. A user may spend two quotas
# around the end of a window; that is what a fixed window costs, and the limit is no promise to anybody.
TAKE = """local used = redis.call('incrby', KEYS[1], ARGV[1])
local left_ms = redis.call('pttl', KEYS[1])
if left_ms < 0 then redis.call('pexpire', KEYS[1], ARGV[2]); left_ms = tonumber(ARGV[2]) end
return {used, left_ms}"""


class Standing(NamedTuple):
    """How a user stands with a quota after a request."""

    name: str
    limit: int  # requests a window
    granted: bool
    remaining: int
    reset_seconds: int  # until the window ends

    @property
    def headers(self) -> dict[str, str]:
        """Say it to the client. Source: draft-ietf-httpapi-ratelimit-headers-11."""
        return {
            "RateLimit-Policy": f'"{self.name}";q={self.limit};w={WINDOW_SECONDS}',
            "RateLimit": f'"{self.name}";r={self.remaining};t={self.reset_seconds}',
        }


class _Lease:
    """What a process may still grant of a user's quota without asking."""

    __slots__ = ("ends_at", "left", "remaining", "until")

    def __init__(self, left: int, remaining: int, ends_at: float) -> None:
        self.left = left
        self.remaining = remaining  # of the quota, when it was asked
        self.ends_at = ends_at  # of the window (time.monotonic())
        self.until = min(time.monotonic() + LEASE_SECONDS, ends_at)


class Quota:
    """One quota for every user: `setting` names the setting that has its limit; 0 is none."""

    def __init__(self, name: str, setting: str) -> None:
        """Begin with nothing leased."""
        self.name = name
        self._setting = setting
        self._leases: dict[int, _Lease] = {}
        self._locks = [threading.Lock() for _ in range(LOCKS)]
        self._rest_until = 0.0

    def forget(self) -> None:
        """Ask again for everybody, as after the counters were deleted."""
        self._leases.clear()
        self._rest_until = 0.0

    def take(self, user_id: int) -> Standing | None:
        """Count one request of a user. None: there is no quota."""
        limit = int(getattr(settings, self._setting))
        if not limit:
            return None
        with self._locks[user_id % LOCKS]:  # one who waits for Redis keeps few others waiting
            lease = self._leases.get(user_id)
            if lease is None or not lease.left or time.monotonic() >= lease.until:
                lease = self._lease(user_id, limit, lease)
            granted = lease.left > 0
            lease.left -= granted
            lease.remaining -= granted
            return self._standing(limit, lease, granted=granted)

    def _standing(self, limit: int, lease: _Lease, *, granted: bool) -> Standing:
        reset = max(1, math.ceil(lease.ends_at - time.monotonic()))
        return Standing(self.name, limit, granted, max(0, lease.remaining), reset)

    def _lease(self, user_id: int, limit: int, before: _Lease | None) -> _Lease:
        remaining = limit if before is None else before.remaining
        wanted = max(1, min(LARGEST_LEASE, remaining // LEASE_SHARE))
        unused = 0 if before is None or time.monotonic() >= before.ends_at else before.left
        lease = self._shared(user_id, limit, wanted, unused) or self._alone(limit, before)
        if len(self._leases) >= MOST_REMEMBERED:
            self._leases.clear()
        self._leases[user_id] = lease
        return lease

    def _shared(self, user_id: int, limit: int, wanted: int, unused: int) -> _Lease | None:
        """Ask Redis for so many requests, less what is left of those before; None: it is away."""
        if time.monotonic() < self._rest_until:
            return None
        key = f"{settings.KEY_PREFIX}:quota:{self.name}:{user_id}"
        try:
            used, left_ms = _script()(keys=[key], args=[wanted - unused, WINDOW_SECONDS * 1000])
        except (RedisError, OSError) as error:
            self._rest_until = time.monotonic() + REST_SECONDS
            log.warning("quota.uncounted", extra={"quota": self.name, "error": type(error).__name__})
            return None
        granted = max(0, wanted - max(0, used - limit))
        return _Lease(granted, min(limit, limit - used + granted), time.monotonic() + left_ms / 1000)

    def _alone(self, limit: int, before: _Lease | None) -> _Lease:
        """Go on with what this process has counted, in windows of its own."""
        if before is None or time.monotonic() >= before.ends_at:
            return _Lease(limit, limit, time.monotonic() + WINDOW_SECONDS)
        return _Lease(before.remaining, before.remaining, before.ends_at)


POSTS = Quota("posts", "POSTS_PER_MINUTE")
READS = Quota("reads", "READS_PER_MINUTE")


def forget_all() -> None:
    """Ask again for everybody and over a new connection, as after settings have changed."""
    _script.cache_clear()
    POSTS.forget()
    READS.forget()


@functools.cache
def _script() -> redis.commands.core.Script:
    client = redis.Redis.from_url(
        settings.QUOTA_URL,
        socket_timeout=settings.REDIS_TIMEOUT_SECONDS,
        socket_connect_timeout=settings.REDIS_TIMEOUT_SECONDS,
        retry=Retry(NoBackoff(), 0),
    )
    return client.register_script(TAKE)
