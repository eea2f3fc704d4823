"""python manage.py verify: do the rows keep every invariant that SQL can see?"""

import json
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from operations import verify


class Command(BaseCommand):
    """Check the invariants. Exits with 1 and names what is broken, if anything is."""

    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--accepted", type=Path, help="a file with ids that were answered 202, one a line"
        )
        parser.add_argument("--json", action="store_true", help="print JSON, for programs")

    def handle(self, *, accepted: Path | None, **options: Any) -> None:
        broken = verify.violations(_ids(accepted))
        checked = sorted({check.invariant for check in verify.CHECKS})
        if options["json"]:
            found = [violation._asdict() for violation in broken]
            report = {"checked": checked, "not_by_sql": verify.NOT_BY_SQL, "violations": found}
            self.stdout.write(json.dumps(report, indent=2))
        else:
            self._tell(checked, broken)
        if broken:
            raise SystemExit(1)

    def _tell(self, checked: list[str], broken: list[verify.Violation]) -> None:
        for invariant, what, rows in broken:
            self.stdout.write(f"{invariant} broken: {what}: {', '.join(rows)}")
        for invariant, why in verify.NOT_BY_SQL.items():
            self.stdout.write(f"{invariant} not by SQL: {why}")
        self.stdout.write(f"{len(verify.CHECKS)} checks of {', '.join(checked)}: {len(broken)} broken")


def _ids(accepted: Path | None) -> list[str]:
    if accepted is None:
        return []
    try:
        return accepted.read_text().split()
    except OSError as error:
        raise CommandError(f"can't read the accepted ids from {accepted}: {error.strerror}") from error
