"""python manage.py caches: what is cached, for how long, and which job makes it stale; clear one or all."""

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from redis.exceptions import RedisError

from operations import cache, cache_store, jobs


class Command(BaseCommand):
    """List caches, or clear them: nothing but the cache's own keys is touched."""

    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("act", nargs="?", default="list", choices=["list", "clear"])
        parser.add_argument("name", nargs="?", default="", help="which to clear; none: all of them")
        parser.add_argument("--json", action="store_true", help="print JSON, for programs")

    def handle(self, *, act: str, name: str, **options: Any) -> None:
        names = [cached.name for cached in cache.every()]
        if name and name not in names:
            raise CommandError(f"no cache is called {name!r}; there are {', '.join(names)}")
        try:
            told = _cleared(name, names) if act == "clear" else [_told(cached) for cached in cache.every()]
        except (RedisError, OSError) as away:
            raise CommandError(f"the cache does not answer: {type(away).__name__}") from away
        if options["json"]:
            self.stdout.write(json.dumps(told, indent=2))
            return
        for each in told:
            self.stdout.write("  ".join(f"{what} {value}" for what, value in each.items()))


def _told(cached: cache.Cached) -> dict[str, Any]:
    stale = {job.name: list(job.invalidates) for job in jobs.every() if _concerns(job, cached)}
    return {
        "cache": cached.name,
        "fresh_seconds": cached.fresh_seconds,
        "kept_seconds": cached.ttl_seconds,
        "absent_seconds": cached.absent_seconds,
        "jitter": cached.jitter,
        "strict": cached.strict,
        "stale_after": stale,
        "values": cache_store.count(cached.name),
    }


def _concerns(job: jobs.Job, cached: cache.Cached) -> bool:
    return any(template.startswith(f"{cached.name}:") for template in job.invalidates)


def _cleared(name: str, names: list[str]) -> list[dict[str, Any]]:
    return [{"cache": each, "cleared": cache_store.clear(each)} for each in ([name] if name else names)]
