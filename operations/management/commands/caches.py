"""python manage.py caches: how each cache does and whether it lies; clear one, or give it other times."""

import getpass
import json
from collections.abc import Iterable
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from redis.exceptions import RedisError

from operations import cache_acts, cache_kinds, cache_orders, cache_report
from operations.cache import Cached
from operations.cache_books import KEPT_HOURS

BAD = (cache_report.NoSuchCache, cache_report.Unloadable, cache_orders.BadOrder, TypeError)
ACTS = ("list", "compare", "clear", "order", "reset", "page")


class Command(BaseCommand):
    """List caches, compare them with the data, clear them, order other times, write their page."""

    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("act", nargs="?", default="list", choices=ACTS)
        parser.add_argument("name", nargs="?", default="", help="which cache; none: all of them")
        parser.add_argument("parts", nargs="*", help="compare: of which value; none: of all that are stored")
        parser.add_argument("--hours", type=int, default=24, help="list: figures of so many hours (1 to 24)")
        parser.add_argument("--most", type=int, default=1_000, help="compare: values of a cache at most")
        parser.add_argument("--soft", type=float, help="order: seconds until a value is rebuilt")
        parser.add_argument("--jitter", type=float, help="order: 0 to 1, by how much times are stretched")
        parser.add_argument(
            "--revalidate", choices=["yes", "no"], help="order: serve what is stale while it is rebuilt"
        )
        parser.add_argument("--reason", default="", help="clear, order, reset: why; kept in the audit")
        parser.add_argument("--as", dest="actor", default="", help="who you are (default: the login name)")
        parser.add_argument("--json", action="store_true", help="print JSON, for programs")

    def handle(self, *, act: str, **options: Any) -> None:
        if act == "page":
            self.stdout.write(cache_report.page(cache_kinds.every()))
        else:
            self._tell(act, options)

    def _tell(self, act: str, options: dict[str, Any]) -> None:
        try:
            told = [*self._done(act, options)]
        except BAD as bad:
            raise CommandError(str(bad)) from bad
        except (RedisError, OSError) as away:
            raise CommandError(f"the cache does not answer: {type(away).__name__}") from away
        if options["json"]:
            self.stdout.write(json.dumps(told, indent=2))
        different = [each["name"] for each in told if each.get("verdict") == "different"]
        if different:
            raise CommandError(f"not what the data say: {', '.join(different)}")

    def _done(self, act: str, options: dict[str, Any]) -> Iterable[dict[str, Any]]:
        do = {"list": _listed, "compare": _compared, "clear": _cleared, "order": _ordered, "reset": _reset}
        for each in do[act](cache_report.named(options["name"]), options):
            if not options["json"]:
                self.stdout.write(_lines(each))
            yield each


def _listed(caches: list[Cached], options: dict[str, Any]) -> Iterable[dict[str, Any]]:
    hours = min(max(1, options["hours"]), KEPT_HOURS)
    return (cache_report.told(cached, hours=hours) for cached in caches)


def _compared(caches: list[Cached], options: dict[str, Any]) -> Iterable[dict[str, Any]]:
    for cached in caches:
        for seen in cache_report.compare(cached, options["parts"] or None, most=options["most"]):
            yield seen.told()


def _cleared(caches: list[Cached], options: dict[str, Any]) -> Iterable[dict[str, Any]]:
    for cached in caches:
        values = cache_acts.clear(cached, actor=_actor(options), reason=options["reason"])
        yield {"cache": cached.name, "cleared": values}


def _ordered(caches: list[Cached], options: dict[str, Any]) -> Iterable[dict[str, Any]]:
    revalidate = {None: None, "yes": True, "no": False}[options["revalidate"]]
    wanted = {"soft_seconds": options["soft"], "jitter": options["jitter"], "revalidate": revalidate}
    for cached in _one(caches, options):
        yield cache_acts.order(cached, wanted, actor=_actor(options), reason=options["reason"])


def _reset(caches: list[Cached], options: dict[str, Any]) -> Iterable[dict[str, Any]]:
    for cached in _one(caches, options):
        yield cache_acts.reset(cached, actor=_actor(options), reason=options["reason"])


def _one(caches: list[Cached], options: dict[str, Any]) -> list[Cached]:
    if not options["name"]:
        raise CommandError("which cache? an order is for one")
    return caches


def _actor(options: dict[str, Any]) -> str:
    return options["actor"] or f"cli:{getpass.getuser()}"


def _lines(told: dict[str, Any]) -> str:
    """Write what is told of one thing for people: its name, and each figure on a line of its own."""
    (_, name), *rest = told.items()
    return "\n".join([name, *(f"  {_worded(what):24}{_shown(value)}" for what, value in rest)])


def _worded(what: str) -> str:
    return what.replace("_", " ")


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{job}: {', '.join(templates)}" for job, templates in value.items()) or "no job"
    if isinstance(value, list):
        return ", ".join(value)
    if value is None or isinstance(value, bool):
        return {None: "—", True: "yes", False: "no"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)
