"""python manage.py effects: what was done outside; record what became of it where nobody knows."""

import getpass
import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from operations import settle
from operations.models import Effect


class Command(BaseCommand):
    """List what is unresolved, or an operation's effects; settle one."""

    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("act", choices=["list", "settle"])
        parser.add_argument("effect", nargs="?", type=int, help="which to settle: the number that list shows")
        parser.add_argument("certainty", nargs="?", default="", help="confirmed or refused")
        parser.add_argument("--operation", default="", help="list all effects of this one")
        parser.add_argument("--reference", default="", help="the provider's own name for it")
        parser.add_argument("--reason", default="", help="how you found out; kept in the audit")
        parser.add_argument("--result", default="", help="JSON: what the provider would have answered")
        parser.add_argument("--as", dest="actor", default="", help="who you are (default: the login name)")
        parser.add_argument("--json", action="store_true", help="print JSON, for programs")

    def handle(self, *, act: str, **options: Any) -> None:
        effects = [self._settled(options)] if act == "settle" else _listed(options["operation"])
        if options["json"]:
            self.stdout.write(json.dumps([_told(effect) for effect in effects], indent=2, default=str))
            return
        for effect in effects:
            self.stdout.write(_line(effect))
        if act == "list":
            self.stdout.write(f"{len(effects)} effects")

    def _settled(self, options: dict[str, Any]) -> Effect:
        if options["effect"] is None:
            raise CommandError("which effect? `effects list` shows those that are unresolved")
        finding = settle.Finding(
            options["certainty"], options["reference"], options["reason"], _read(options["result"])
        )
        try:
            return settle.settle(
                options["effect"], finding, actor=options["actor"] or f"cli:{getpass.getuser()}"
            )
        except settle.Refused as refused:
            raise CommandError(str(refused)) from refused


def _read(text: str) -> dict[str, Any] | None:
    if not text:
        return None
    try:
        result = json.loads(text)
    except ValueError as error:
        raise CommandError(f"--result is not JSON: {error}") from error
    if not isinstance(result, dict):
        raise CommandError("--result is a JSON object, as the provider's answer is")
    return result


def _listed(operation: str) -> list[Effect]:
    if not operation:
        return settle.unresolved()
    found = Effect.objects.filter(operation_id=operation).select_related("operation")
    return list(found.defer("request", "result").order_by("id"))


def _told(effect: Effect) -> dict[str, Any]:
    return {
        "effect": effect.pk,
        "operation": str(effect.operation_id),
        "job_type": effect.operation.job_type,
        "status": effect.operation.status,
        "step": effect.step,
        "generation": effect.generation,
        "certainty": effect.certainty,
        "key": effect.key,
        "amount_minor": effect.amount_minor,
        "sent_at": effect.sent_at,
        "concluded_by": effect.concluded_by,
        "proposed": effect.proposed,
    }


def _line(effect: Effect) -> str:
    amount = "" if effect.amount_minor is None else f" {effect.amount_minor}"
    proposed = f", proposed by {effect.proposed['by']}" if effect.proposed else ""
    sent = f" sent {effect.sent_at:%Y-%m-%d %H:%M:%S} UTC" if effect.sent_at else ""
    return (
        f"{effect.pk}  {effect.certainty}  {effect.operation.job_type} {effect.operation_id}"
        f"  {effect.step} g{effect.generation}{amount}{sent}{proposed}"
    )
