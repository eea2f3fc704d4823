"""The benchmark runs from end to end, and refuses figures about work that was not done."""

import json
import subprocess
import sys

import pytest

from benchmarks.sides import Ours, WorkMissing
from deploy.local.procfile import ROOT

SMALL = ("--rounds", "1", "--operations", "6", "--latencies", "2", "--backlog", "6")


@pytest.mark.process
@pytest.mark.embedded
@pytest.mark.timeout(400)
def test_every_path_is_measured_on_real_servers(tmp_path):
    report = tmp_path / "bench.json"
    command = [sys.executable, "-m", "benchmarks.run", *SMALL, "--report", str(report)]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    results = json.loads(report.read_text())["results"]
    assert {result["name"] for result in results} >= {
        "accept",
        "repeat of a key",
        "status poll, 304",
        "worker",
        "whole operation",
        "backlog drained",
        "idle latency",
    }
    assert all(result["ours"] > 0 and result["baseline"] > 0 for result in results)


class TestCheck:
    def test_refuses_figures_when_rows_are_missing(self, monkeypatch):
        side = Ours.__new__(Ours)
        side.name = "ours"
        before = dict.fromkeys(Ours.counts, 0)
        done = {"operations": 2, "keys": 2, "transitions": 6, "succeeded": 2, "attempts": 2, "entries": 1}
        monkeypatch.setattr(side, "count", lambda: done)

        with pytest.raises(WorkMissing, match="entries grew by 1, not by 2"):
            side.check(before, accepted=2, ran=2)
