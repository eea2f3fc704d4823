"""What must hold of the caches and of the stores before a process starts."""

from collections.abc import Iterable, Sequence
from typing import Any

import redis
from django.apps import AppConfig
from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error, register
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from config import connections
from operations import cache_kinds, cache_names, jobs

KEEPS_ALL = "noeviction"


@register("teguh")
def check_caches(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> Iterable[CheckMessage]:
    """Hold what jobs make stale to the caches there are: a name that is none would never be told."""
    known = ", ".join(cached.name for cached in cache_kinds.every())
    for job in jobs.every():
        for template in job.invalidates:
            cached = cache_kinds.find(cache_names.kind_of(template))
            if cached is None:
                yield Error(
                    f"{job.name} makes {template!r} stale, and there is no such cache",
                    hint=f"declare it in a caches.py; there are {known}",
                    id="teguh.E009",
                )
            elif cache_names.parts_in(template) != len(cached.parts):
                yield Error(
                    f"{job.name} makes {template!r} stale, which is told by {', '.join(cached.parts)}",
                    hint="name as many parts as the cache has; its variants are made stale with them",
                    id="teguh.E010",
                )


@register("teguh")
def check_stores(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> Iterable[CheckMessage]:
    """Hold broker, cache, locks and quotas apart: to clear one must not empty another."""
    known: dict[tuple[str, str], str] = {}
    for name, url in _stores().items():
        where = connections.redis_place(url)
        if where in known:
            yield Error(
                f"{name} is where {known[where]} is: database {where[1]} of {where[0]}",
                hint=f"give {name} a database or a server of its own",
                id="teguh.E011",
            )
        known.setdefault(where, name)


@register("teguh")
def check_eviction(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> Iterable[CheckMessage]:
    """Hold the servers of broker and locks to forget nothing; one that does not answer says nothing."""
    for name in ("BROKER_URL", "LOCK_URL"):
        url = _stores().get(name)
        policy = None if url is None else _policy_of(url)
        if policy not in (None, KEEPS_ALL):
            yield checks.Warning(
                f"the server of {name} drops keys when it is full: maxmemory-policy is {policy}",
                hint=f"set it to {KEEPS_ALL}: messages and locks are not to be had again",
                id="teguh.W012",
            )


def _stores() -> dict[str, str]:
    """Give the Redis stores by the names of their settings."""
    urls = {"CACHE_URL": settings.CACHE_URL, "LOCK_URL": settings.LOCK_URL, "QUOTA_URL": settings.QUOTA_URL}
    return urls if settings.ON_RABBITMQ else {"BROKER_URL": settings.BROKER_URL, **urls}


def _policy_of(url: str) -> str | None:
    """Ask a server what it does when it is full; None: it does not say."""
    client = redis.Redis.from_url(
        connections.redis_url(url),
        socket_timeout=settings.REDIS_TIMEOUT_SECONDS,
        socket_connect_timeout=settings.REDIS_TIMEOUT_SECONDS,
        retry=Retry(NoBackoff(), 0),
    )
    try:
        return str(client.info("memory").get("maxmemory_policy"))
    except (RedisError, OSError):
        return None
    finally:
        client.close()
