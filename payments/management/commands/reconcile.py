"""python manage.py reconcile: compare payments with the gateway; differences are shown in the admin."""

import json
from collections.abc import Callable
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from operations.jobs import Rejected
from payments import reconcile
from payments.models import Drift
from tasks.retry import CallFailed

KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "fast": reconcile.fast,
    "sweep": reconcile.sweep,
    "balance": reconcile.balance,
}


class Command(BaseCommand):
    """Compare; each minute `fast`, each hour `sweep`, each day `balance`."""

    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("kind", choices=[*KINDS, "all"])
        parser.add_argument("--json", action="store_true", help="print JSON, for programs")

    def handle(self, *, kind: str, **options: Any) -> None:
        kinds = KINDS if kind == "all" else {kind: KINDS[kind]}
        told: dict[str, Any] = {}
        for name, compare in kinds.items():
            if not options["json"]:
                self.stderr.write(f"{name} …")
            told[name] = self._compared(name, compare)
        told["open_drifts"] = Drift.objects.filter(closed_at=None).count()
        self.stdout.write(json.dumps(told, indent=2) if options["json"] else _lines(told))

    def _compared(self, name: str, compare: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        try:
            return compare()
        except (CallFailed, Rejected) as error:
            raise CommandError(f"{name}: the gateway could not be asked: {error}") from error


def _lines(told: dict[str, Any]) -> str:
    lines = [
        f"{name}: {', '.join(f'{value} {what}' for what, value in counts.items()) or 'nothing to compare'}"
        for name, counts in told.items()
        if isinstance(counts, dict)
    ]
    return "\n".join([*lines, f"{told['open_drifts']} differences are open"])
