"""What was tried, for people and, in var/reports/crash.json, for programs."""

import json
from typing import Any

from deploy.local.procfile import ROOT
from tests.crashes.campaign import BOUND_SECONDS, Run
from tests.crashes.guards import Guard

FILE = ROOT / "var" / "reports" / "crash.json"


class Report:
    """The runs and guards of one session, in the order of its tests."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.guards: list[Guard] = []

    def is_empty(self) -> bool:
        return not self.runs and not self.guards

    def as_json(self) -> dict[str, Any]:
        return {
            "runs": [run._asdict() for run in self.runs],
            "violations": sum(len(run.violations) for run in self.runs),
            "guards": [guard._asdict() for guard in self.guards],
        }

    def write(self) -> None:
        FILE.parent.mkdir(parents=True, exist_ok=True)
        FILE.write_text(json.dumps(self.as_json(), indent=2) + "\n")

    def lines(self) -> list[str]:
        fired = [run for run in self.runs if run.fired]
        recovered = [run.recovered_seconds for run in fired if run.recovered_seconds is not None]
        slowest = max(recovered, default=0.0)
        points = {run.point for run in fired}
        return [
            f"{'point':<29}{'process':<18}{'nth':>4}{'recovered':>11}  violations",
            *(_line_of_run(run) for run in self.runs),
            f"{len(fired)} kills at {len(points)} points; the slowest recovery took {slowest:.1f} s,"
            f" the bound is {BOUND_SECONDS:.1f} s",
            *(_line_of_guard(guard) for guard in self.guards),
            f"written to {FILE.relative_to(ROOT)}",
        ]


def _line_of_run(run: Run) -> str:
    recovered = "not passed" if run.recovered_seconds is None else f"{run.recovered_seconds:.1f} s"
    return (
        f"{run.point:<29}{run.process:<18}{run.nth:>4}{recovered:>11}  {'; '.join(run.violations) or 'none'}"
    )


def _line_of_guard(guard: Guard) -> str:
    found = f"{guard.invariant} is found broken" if guard.suite_failed else f"{guard.invariant} seems kept!"
    return f"without {guard.guard}: {found}"
