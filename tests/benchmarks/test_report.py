"""Figures are medians of per-round ratios, and are held against their bars."""

import json

import pytest

from benchmarks import report
from benchmarks.paths import Sample


def _round(ours, baseline):
    return {
        ("ours", "accept"): Sample(100, cpu_ms=ours, seconds=1.0, latencies_ms=[1.0, 2.0, 3.0]),
        ("careful", "accept"): Sample(100, cpu_ms=baseline, seconds=2.0, latencies_ms=[4.0]),
    }


class TestFigures:
    def test_take_the_median_of_the_rounds_ratios(self):
        # ratios 0.5, 0.6 and 2.0; the medians of both sides alone would say 2 / 4 = 0.5
        rounds = [_round(1.0, 2.0), _round(2.0, 4.0 / 1.2), _round(8.0, 4.0)]

        accept = report.figures(rounds)[0]

        assert (accept["name"], accept["unit"], accept["rounds"]) == ("accept", "CPU ms/op", 3)
        assert accept["ratio"] == pytest.approx(0.6)

    def test_leave_out_what_was_not_measured(self):
        assert {result["name"] for result in report.figures([_round(1.0, 2.0)])} == {"accept"}

    def test_give_the_latency_of_our_requests(self):
        assert report.figures([_round(1.0, 2.0)])[0]["p50"] == 2.0


class TestMissed:
    def test_names_what_is_above_its_bar(self):
        assert report.missed(report.figures([_round(1.0, 1.0)])) == ["accept"]

    def test_is_empty_when_all_hold(self):
        assert report.missed(report.figures([_round(0.5, 1.0)])) == []


class TestWrite:
    def test_has_the_promised_form_and_nothing_else(self, tmp_path):
        report.write(
            tmp_path / "reports" / "bench.json", report.machine(), report.figures([_round(1.0, 2.0)])
        )

        written = json.loads((tmp_path / "reports" / "bench.json").read_text())
        assert set(written) == {"machine", "results"}
        for result in written["results"]:
            assert set(result) == {"name", "unit", "ours", "baseline", "ratio", "p50", "p99", "rounds"}
