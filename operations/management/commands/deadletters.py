"""python manage.py deadletters: what failed and waits for a person, and what can be done about it."""

import getpass
import json
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models import Count, Max, Min, QuerySet

from operations import replays
from operations.models import AuditEntry, DeadLetter, Resolution

Row = dict[str, Any]
LISTED = ("id", "operation_id", "job_type", "reason", "error_class", "signature", "attempts", "created_at")
PROGRESS_EVERY = 25  # dead letters between two lines of progress


class Command(BaseCommand):
    """List dead letters, group them by signature, show one, send some round again, discard some."""

    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare one sub-command an act; all take --json."""
        acts = parser.add_subparsers(dest="act", required=True, metavar="groups|list|show|replay|discard")
        _filters(_act(acts, "groups", "waiting dead letters by signature, the most frequent first"))
        listing = _act(acts, "list", "dead letters, the newest first")
        _filters(listing)
        listing.add_argument(
            "--resolution", choices=Resolution.values, default=Resolution.WAITING, help="(default waiting)"
        )
        listing.add_argument("--limit", type=int, default=50, help="how many (default 50)")
        _act(acts, "show", "one dead letter with its operation's history").add_argument("id", type=int)
        for name, says in (("replay", "send round again"), ("discard", "give up for good")):
            act = _act(acts, name, says)
            act.add_argument(
                "ids", type=int, nargs="*", help="dead letters; or choose by --signature, --job-type"
            )
            _filters(act)
            act.add_argument("--reason", required=True, help="why; kept in the audit")
            act.add_argument(
                "--dry-run", action="store_true", help="say what would happen and change nothing"
            )

    def handle(self, *, act: str, **options: Any) -> None:
        """Do the act. Exit with 1 if anything was refused."""
        self.as_json = options["json"]
        acts: dict[str, Callable[[Row], None]] = {
            "groups": self._groups,
            "list": self._list,
            "show": self._show,
            "replay": self._change,
            "discard": self._change,
        }
        acts[act]({**options, "act": act})

    def _groups(self, options: Row) -> None:
        found: Any = (
            _found(options, Resolution.WAITING)
            .values("signature", "job_type", "reason", "error_class")
            .annotate(
                count=Count("id"),
                first_seen=Min("created_at"),
                last_seen=Max("created_at"),
                users=Count("operation__owner", distinct=True),
                message=Max("error_message"),
            )
            .order_by("-count", "signature")
        )
        self._table(
            list(found),
            ("signature", "count", "users", "job_type", "reason", "error_class", "last_seen", "message"),
        )

    def _list(self, options: Row) -> None:
        newest = _found(options, options["resolution"]).order_by("-id").values(*LISTED)
        self._table(list(newest[: options["limit"]]), LISTED)

    def _show(self, options: Row) -> None:
        letter = DeadLetter.objects.select_related("operation").filter(id=options["id"]).first()
        if letter is None:
            raise CommandError(
                f"there is no dead letter {options['id']}; `deadletters list` names those that wait"
            )
        history = letter.operation.transitions.order_by("id")
        moves: list[Any] = list(
            history.values("at", "from_status", "to_status", "reason", "run", "attempt", "actor", "error")
        )
        facts = {field.name: getattr(letter, field.attname) for field in DeadLetter._meta.concrete_fields}
        preview = replays.preview(letter)
        shown = {**facts, "operation": letter.operation_id, "eligible": preview.eligible, "why": preview.why}
        if self.as_json:
            self._print_json({**shown, "history": moves})
            return
        for name, value in shown.items():
            self.stdout.write(f"{name:>20}  {value}")
        self._table(moves, ("at", "from_status", "to_status", "reason", "run", "attempt", "actor", "error"))

    def _change(self, options: Row) -> None:
        """Replay or discard the chosen ones, one transaction each; a refusal does not stop the rest."""
        chosen = _chosen(options)
        outcomes: list[Row] = []
        try:
            for letter in self._progress(chosen, len(chosen)):
                outcomes.append(self._outcome(letter, options))
        finally:  # also when it is interrupted: what was done is done
            if not (options["ids"] or options["dry_run"]):
                _audit_batch(options, len(chosen), outcomes)
        refused = [outcome for outcome in outcomes if not outcome["ok"]]
        if self.as_json:
            self._print_json({"act": options["act"], "dry_run": options["dry_run"], "outcomes": outcomes})
        else:
            self._table(outcomes, ("id", "operation", "ok", "said"))
            self.stdout.write(f"{len(outcomes) - len(refused)} done, {len(refused)} refused")
        if refused:
            raise SystemExit(1)

    def _outcome(self, letter: DeadLetter, options: Row) -> Row:
        about = {"id": letter.id, "operation": str(letter.operation_id)}
        if options["dry_run"]:
            look = replays.preview if options["act"] == "replay" else replays.preview_discard
            preview = look(letter)
            return {**about, "ok": preview.eligible, "said": preview.why}
        act = replays.replay if options["act"] == "replay" else replays.discard
        try:
            operation = act(letter.id, actor=_actor(), reason=options["reason"])
        except replays.Refused as refused:
            return {**about, "ok": False, "said": str(refused)}
        return {**about, "ok": True, "said": f"{operation.status} ({operation.reason})"}

    def _progress(self, letters: list[DeadLetter], total: int) -> Iterator[DeadLetter]:
        for number, letter in enumerate(letters, start=1):
            yield letter
            if number % PROGRESS_EVERY == 0 or number == total:
                goes_on = number < total and sys.stderr.isatty()
                self.stderr.write(f"{number} of {total}", ending="\r" if goes_on else "\n")

    def _table(self, rows: list[Row], columns: tuple[str, ...]) -> None:
        if self.as_json:
            self._print_json(rows)
            return
        cells = [[_cell(row[column]) for column in columns] for row in rows]
        widths = [max(len(line[at]) for line in [list(columns), *cells]) for at in range(len(columns))]
        for line in [list(columns), *cells]:
            self.stdout.write(
                "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            )
        if not rows:
            self.stdout.write("there is none")

    def _print_json(self, value: Any) -> None:
        self.stdout.write(json.dumps(value, default=str, indent=2))


def _act(acts: Any, name: str, says: str) -> ArgumentParser:
    act: ArgumentParser = acts.add_parser(name, help=says, description=says)
    act.add_argument("--json", action="store_true", help="print JSON, for programs")
    return act


def _filters(act: ArgumentParser) -> None:
    act.add_argument("--signature", default="", help="only this kind of failure")
    act.add_argument("--job-type", default="", help="only this job")


def _found(options: Row, resolution: str) -> QuerySet[DeadLetter]:
    return DeadLetter.objects.filter(resolution=resolution, **_asked_for(options))


def _asked_for(options: Row) -> dict[str, str]:
    return {name: options[name] for name in ("signature", "job_type") if options[name]}


def _chosen(options: Row) -> list[DeadLetter]:
    if options["ids"]:
        letters = DeadLetter.objects.select_related("operation").filter(id__in=options["ids"])
        missing = set(options["ids"]) - {letter.id for letter in letters}
        if missing:
            raise CommandError(
                f"there is no dead letter {', '.join(map(str, sorted(missing)))}; nothing was changed"
            )
        return list(letters.order_by("id"))
    if not _asked_for(options):
        raise CommandError(f"say which to {options['act']}: ids, --signature or --job-type")
    return list(_found(options, Resolution.WAITING).select_related("operation").order_by("id"))


def _audit_batch(options: Row, count: int, outcomes: list[Row]) -> None:
    """Write one entry for the whole, beside the one that each act has written in its transaction."""
    done = sum(outcome["ok"] for outcome in outcomes)
    AuditEntry.objects.create(
        actor=_actor(),
        action=f"{options['act']}_batch",
        target="dead_letters",
        reason=options["reason"],
        before={"filter": _asked_for(options), "count": count},
        after={"done": done, "refused": len(outcomes) - done, "untouched": count - len(outcomes)},
    )


def _actor() -> str:
    return f"cli:{getpass.getuser()}"


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return " ".join(text.split())[:60]
