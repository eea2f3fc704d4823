"""What was done and what came of it, for people and, in var/reports/nemesis.json, for programs."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deploy.local.procfile import ROOT
from tests.nemesis.campaign import Outcome, Struck
from tests.nemesis.schedule import KINDS

FILE = ROOT / "var" / "reports" / "nemesis.json"
MOST_SHOWN = 20  # of each sort of bad news


class Report:
    """One run."""

    def __init__(self, *, seed: int, seconds: float, without: str, outcome: Outcome) -> None:
        self._seed, self._seconds, self._without, self._outcome = seed, seconds, without, outcome

    def as_json(self) -> dict[str, Any]:
        struck, verdict = self._outcome.struck, self._outcome.verdict
        return {
            "seed": self._seed,
            "seconds": self._seconds,
            "without": self._without,
            "operations": verdict.operations,
            "lost": len(verdict.lost),
            "doubled": len(verdict.doubled),
            "violations": len(verdict.violations),
            "faults": counted(struck),
            "in_flight_at_faults": sum(each.in_flight.due for each in struck),
            "in_flight_by_kind": _summed(struck),
            "replays": self._outcome.replays,
            "settled_seconds": self._outcome.settled_seconds,
            "schedule": [_told(each) for each in struck],
            "details": {
                "lost": verdict.lost,
                "doubled": verdict.doubled,
                "violations": verdict.violations,
            },
        }

    def write(self, file: Path = FILE) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(self.as_json(), indent=2) + "\n")

    def lines(self) -> list[str]:
        told, verdict = self.as_json(), self._outcome.verdict
        bad = [*verdict.lost[:MOST_SHOWN], *verdict.doubled[:MOST_SHOWN], *verdict.violations[:MOST_SHOWN]]
        return [
            f"{'fault':<34}{'done':>5}{'in flight at all of them':>26}",
            *(f"{kind:<34}{told['faults'][kind]:>5}{told['in_flight_by_kind'][kind]:>26}" for kind in KINDS),
            *bad,
            f"seed {self._seed}: {verdict.operations} operations, {len(verdict.lost)} lost,"
            f" {len(verdict.doubled)} doubled, {len(verdict.violations)} violations;"
            f" {self._outcome.replays} replays, over {self._outcome.settled_seconds} s after the faults",
        ]


def counted(struck: Sequence[Struck]) -> dict[str, int]:
    """Give how often each kind was done; every time something was in flight."""
    return {kind: sum(each.fault.kind == kind for each in struck) for kind in KINDS}


def _summed(struck: Sequence[Struck]) -> dict[str, int]:
    sums = Counter[str]()
    for each in struck:
        sums[each.fault.kind] += each.in_flight.due
    return {kind: sums[kind] for kind in KINDS}


def _told(struck: Struck) -> dict[str, Any]:
    return {**struck.fault._asdict(), "struck_at_seconds": struck.at_seconds, **struck.in_flight._asdict()}
