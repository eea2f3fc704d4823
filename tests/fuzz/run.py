"""One run of schemathesis against a stack, and what came of it."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from deploy.local import people
from deploy.local.procfile import ROOT
from deploy.local.stack import Stack

FILE = ROOT / "var" / "reports" / "fuzz.json"
CONFIG = Path(__file__).with_name("schemathesis.toml")
PROGRAM = Path(sys.executable).with_name("schemathesis")
NO_LIMITS = {
    "POSTS_PER_MINUTE": "0",
    "READS_PER_MINUTE": "0",
    "MOST_OPEN_OPERATIONS": "0",
    "OLDEST_WAIT_SECONDS": "0",
}
ANSWER_SECONDS = 10.0  # twice what a wait may last, and nothing else may


class Outcome(NamedTuple):
    """What a run said of itself, its exit status, and its report for programs."""

    told: str
    status: int
    report: dict[str, Any]


def fuzz(stack: Stack, directory: Path, *, examples: int, seed: int, limit_seconds: float) -> Outcome:
    """Ask everything that the description knows, `examples` times each; write var/reports/fuzz.json.

    Raises:
        subprocess.TimeoutExpired: it took longer than `limit_seconds`.
    """
    (asker,) = people.make(stack, ["ayu"])
    summary, events = directory / "summary.json", directory / "events.ndjson"
    done = subprocess.run(
        [
            *(PROGRAM, f"--config-file={CONFIG}", "run", f"{stack.api_url}/v1/schema"),
            *("--header", f"Authorization: Token {asker.token}"),
            *("--checks", "all", "--max-examples", str(examples), "--seed", str(seed)),
            *("--request-timeout", str(ANSWER_SECONDS), "--warnings", "off", "--no-color"),
            *("--generation-database", "none"),
            *("--report", "json,ndjson"),
            *("--report-json-path", summary, "--report-ndjson-path", events),
        ],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=limit_seconds,
        check=False,
    )
    report = _report(summary, events) if summary.exists() else {}
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(json.dumps(report, indent=2) + "\n")
    return Outcome(done.stdout + done.stderr, done.returncode, report)


def _report(summary: Path, events: Path) -> dict[str, Any]:
    told = json.loads(summary.read_text())
    return {
        "seed": told["seed"],
        "operations": told["operations"]["tested"],
        "examples": told["test_cases"]["generated"],
        "failures": told["test_cases"]["unique_failures"] + len(told["errors"]),
        "by_operation": _by_operation(events),
        "details": [*told["failures"], *told["errors"]],
    }


def _by_operation(events: Path) -> dict[str, int]:
    """Count the examples of each operation that is described, e.g. of "GET /v1/operations"."""
    scenarios = list(_scenarios(events))
    described = {each["recorder"]["label"] for each in scenarios if each["phase"] != "stateful"}
    asked = Counter(
        f"{case['value']['method']} {case['value']['path']}"
        for each in scenarios
        for case in each["recorder"].get("cases", {}).values()
    )
    return {operation: asked[operation] for operation in sorted(described)}


def _scenarios(events: Path) -> Iterator[dict[str, Any]]:
    for line in events.read_text().splitlines():
        scenario = json.loads(line).get("ScenarioFinished")
        if scenario is not None:
            yield scenario
