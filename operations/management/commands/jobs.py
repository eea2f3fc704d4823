"""python manage.py jobs: what is held and why; pause, pace or refuse job types, queues and owners."""

import getpass
import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from operations import controls, holds
from operations.models import Dependency, JobControl


class Command(BaseCommand):
    """List what is held; give an order, with a reason."""

    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "act",
            nargs="?",
            default="list",
            choices=["list", *controls.ORDERS, *controls.NUMBERS],
            help="rate takes --to N a minute (0: no limit), backoff --to FACTOR",
        )
        parser.add_argument(
            "scope", nargs="?", default="", help="job_type:NAME, queue:NAME or owner:USERNAME"
        )
        parser.add_argument("--to", type=float, help="the number that rate and backoff take")
        parser.add_argument("--reason", default="", help="why; kept in the audit and shown beside what waits")
        parser.add_argument("--json", action="store_true", help="print JSON, for programs")

    def handle(self, *, act: str, scope: str, to: float | None, reason: str, **options: Any) -> None:
        if act == "list":
            self._list(as_json=options["json"])
            return
        try:
            ordered = controls.change(
                controls.read(scope),
                actor=f"cli:{getpass.getuser()}",
                reason=reason,
                **controls.wanted(act, to),
            )
        except controls.BadOrder as bad:
            raise CommandError(str(bad)) from bad
        told = controls.told(ordered)
        self.stdout.write(json.dumps(told, indent=2) if options["json"] else _line(told))

    def _list(self, *, as_json: bool) -> None:
        told: dict[str, Any] = {
            "holds": [
                {"scope": hold.scope, "kind": hold.kind, "since": hold.began_at, "says": holds.sentence(hold)}
                for hold in holds.open_now()
            ],
            "controls": [controls.told(control) for control in JobControl.objects.order_by("scope")],
            "dependencies": list(
                Dependency.objects.order_by("name").values("name", "state", "generation", "reason")
            ),
        }
        if as_json:
            self.stdout.write(json.dumps(told, indent=2, default=str))
            return
        for hold in told["holds"]:
            self.stdout.write(
                f"{hold['scope']}  {hold['says']} (since {hold['since']:%Y-%m-%d %H:%M:%S} UTC)"
            )
        for dependency in told["dependencies"]:
            self.stdout.write(f"dependency {dependency['name']}  {dependency['state']}")
        self.stdout.write(f"{len(told['holds'])} held")


def _line(told: dict[str, Any]) -> str:
    paused, accepting = "paused" if told["paused"] else "running", "" if told["accepting"] else ", refused"
    rate = "" if told["rate_per_minute"] is None else f", {told['rate_per_minute']} a minute"
    return f"{told['scope']}: {paused}{accepting}{rate}, backoff factor {told['backoff_factor']:g}"
