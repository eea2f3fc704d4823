"""From rounds to figures: medians of per-round ratios, held against the goals."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.paths import Sample

Round = Mapping[tuple[str, str], Sample]  # (side, path) → what was measured


@dataclass(frozen=True)
class Row:
    """One line of the table: a figure of ours, the one it is compared with, and the goal for their ratio."""

    name: str
    unit: str
    ours: tuple[str, str]
    baseline: tuple[str, str]
    bar: float | None = None  # the ratio may be this; None: shown, not judged


CPU, RATE, DRAIN, P50, P99 = "CPU ms/op", "op/s", "s", "ms p50", "ms p99"
ROWS = (
    Row("accept", CPU, ("ours", "accept"), ("careful", "accept"), 0.8),
    Row("repeat of a key", CPU, ("ours", "repeat"), ("ours", "accept"), 0.7),
    Row("status poll, 304", CPU, ("ours", "poll"), ("ours", "accept"), 0.5),
    Row("worker", CPU, ("ours", "run"), ("careful", "run"), 1.6),
    Row("whole operation", CPU, ("ours", "whole"), ("defaults", "whole"), 0.55),
    Row("whole operation, careful baseline", CPU, ("ours", "whole"), ("careful", "whole")),
    Row("backlog drained", DRAIN, ("ours", "backlog"), ("careful", "backlog"), 1.3),
    Row("backlog", CPU, ("ours", "backlog"), ("careful", "backlog")),
    Row("idle latency", P50, ("ours", "latency"), ("defaults", "latency"), 1.5),
    Row("idle latency", P99, ("ours", "latency"), ("defaults", "latency")),
    Row("idle latency, careful baseline", P50, ("ours", "latency"), ("careful", "latency")),
    Row("read of what is cached", CPU, ("reads", "cached"), ("reads", "bare"), 1.3),
    Row("read of what is not", CPU, ("reads", "missed"), ("reads", "query"), 1.2),
    Row("accept, against the earlier", CPU, ("ours", "accept"), ("earlier", "accept"), 1.1),
    Row("worker, against the earlier", CPU, ("ours", "run"), ("earlier", "run"), 1.1),
    Row("whole, against the earlier", CPU, ("ours", "whole"), ("earlier", "whole"), 1.1),
    Row("accept", RATE, ("ours", "accept"), ("careful", "accept")),
    Row("worker", RATE, ("ours", "run"), ("careful", "run")),
    Row("whole operation", RATE, ("ours", "whole"), ("defaults", "whole")),
)


def figures(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """Give one result for each row that was measured; a ratio is the median of the rounds' ratios."""
    return [_figure(row, rounds) for row in ROWS if {row.ours, row.baseline} <= rounds[0].keys()]


def _figure(row: Row, rounds: Sequence[Round]) -> dict[str, Any]:
    ours = [_value(row.unit, measured[row.ours]) for measured in rounds]
    baseline = [_value(row.unit, measured[row.baseline]) for measured in rounds]
    latencies = [each for measured in rounds for each in measured[row.ours].latencies_ms]
    return {
        "name": row.name,
        "unit": row.unit,
        "ours": round(median(ours), 3),
        "baseline": round(median(baseline), 3),
        "ratio": round(median(one / other for one, other in zip(ours, baseline, strict=True)), 3),
        "p50": round(_percentile(latencies, 50), 2) if latencies else None,
        "p99": round(_percentile(latencies, 99), 2) if latencies else None,
        "rounds": len(rounds),
    }


def _value(unit: str, sample: Sample) -> float:
    return {
        CPU: lambda: sample.cpu_ms,
        RATE: lambda: sample.per_second,
        DRAIN: lambda: sample.seconds,
        P50: lambda: _percentile(sample.latencies_ms, 50),
        P99: lambda: _percentile(sample.latencies_ms, 99),
    }[unit]()


def _percentile(values: Sequence[float], nth: int) -> float:
    return quantiles(values, n=100, method="inclusive")[nth - 1] if len(values) > 1 else values[0]


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Lay the results out for people, each with its goal and whether it is met."""
    lines = [_line("path", "unit", "ours", "baseline", "ratio", "bar", "", "p50 ms", "p99 ms")]
    lines += [_line(*_cells(result)) for result in results]
    return "\n".join(lines)


def _cells(result: Mapping[str, Any]) -> tuple[str, ...]:
    bar = bar_of(result)
    verdict = "" if bar is None else "ok" if result["ratio"] <= bar else "MISSED"
    return (
        result["name"],
        result["unit"],
        f"{result['ours']:.2f}",
        f"{result['baseline']:.2f}",
        f"{result['ratio']:.2f}",
        "" if bar is None else f"{bar:.2f}",
        verdict,
        *("" if result[which] is None else f"{result[which]:.1f}" for which in ("p50", "p99")),
    )


def bar_of(result: Mapping[str, Any]) -> float | None:
    return next(row.bar for row in ROWS if (row.name, row.unit) == (result["name"], result["unit"]))


def missed(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name the rows whose ratio is above their bar."""
    judged = [(result, bar) for result in results if (bar := bar_of(result)) is not None]
    return [result["name"] for result, bar in judged if result["ratio"] > bar]


def parts(rounds: Sequence[Round]) -> str:
    """Say where the CPU of each path went: our processes by name, PostgreSQL, Valkey."""
    lines = []
    for side, path in rounds[0]:
        samples = [measured[side, path] for measured in rounds]
        split = {part: median(each.parts_ms[part] for each in samples) for part in samples[0].parts_ms}
        shown = "   ".join(f"{part} {ms:.2f}" for part, ms in split.items())
        lines.append(f"  {side:<9} {path:<8} {median(each.cpu_ms for each in samples):6.2f} ms = {shown}")
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    """Describe where this ran, and how busy it was with other things before."""
    return {
        "cpus": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
    }


def write(file: Path, about: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"machine": about, "results": list(results)}, indent=2) + "\n")


def _line(name: str, unit: str, *cells: str) -> str:
    return f"{name:<34} {unit:<10}" + "".join(f"{cell:>10}" for cell in cells)
