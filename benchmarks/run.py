"""Measure both sides in turns and print how they compare: `make bench`, or python -m benchmarks.run."""

import argparse
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks import paths, report
from benchmarks.sides import Baseline, Earlier, Ours, Reads, Side
from deploy.local.ending import end_on_signals
from deploy.local.servers import Servers

DIRECTORY = Path("var")
REPORT = DIRECTORY / "reports" / "bench.json"
WITH_BACKLOG = ("ours", "careful")


def main() -> int:
    arguments = _arguments()
    end_on_signals()
    about = report.machine()
    try:
        rounds = _measure(arguments)
    except KeyboardInterrupt:
        return 130
    results = report.figures(rounds)
    print(report.table(results))
    if arguments.parts:
        print(report.parts(rounds))
    report.write(arguments.report, about, results)
    return 1 if arguments.strict and report.missed(results) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="measured rounds after one to warm up")
    parser.add_argument("--operations", type=int, default=400, help="of each path in each round")
    parser.add_argument("--latencies", type=int, default=40, help="single requests in each round")
    parser.add_argument("--backlog", type=int, default=5_000, help="0 leaves that path out")
    parser.add_argument("--quick", action="store_true", help="fewer operations, for development")
    parser.add_argument("--parts", action="store_true", help="also say where the CPU went")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="compare with an earlier Teguh, too")
    parser.add_argument("--strict", action="store_true", help="fail when a bar is missed")
    parser.add_argument("--report", type=Path, default=REPORT)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.operations, arguments.latencies, arguments.backlog = 100, 15, 300
    return arguments


def _measure(arguments: argparse.Namespace) -> list[report.Round]:
    DIRECTORY.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir=DIRECTORY)).absolute()
    directory.chmod(0o711)  # PostgreSQL may have to run as nobody
    with ExitStack() as ending:
        ending.callback(shutil.rmtree, directory, ignore_errors=True)
        servers = ending.enter_context(Servers(directory / "servers"))
        sides: list[Side] = [
            Ours("ours", directory / "ours", servers),
            Baseline("careful", directory / "careful", servers),
            Baseline("defaults", directory / "defaults", servers),
            Reads("reads", directory / "reads", servers),
        ]
        if arguments.against is not None:
            sides.append(Earlier("earlier", directory / "earlier", servers, arguments.against))
        for side in sides:
            ending.callback(side.stop)
            _say(f"starting {side.name}")
            side.start()
            side.rest()
        _say("warming up")
        _round(sides, argparse.Namespace(operations=50, latencies=5, backlog=0))
        return [_told(number, sides, arguments) for number in range(1, arguments.rounds + 1)]


def _told(number: int, sides: list[Side], arguments: argparse.Namespace) -> report.Round:
    began = time.monotonic()
    measured = _round(sides, arguments)
    cpu = "  ".join(f"{side}.{path} {sample.cpu_ms:.2f}" for (side, path), sample in measured.items())
    _say(f"round {number} of {arguments.rounds} in {time.monotonic() - began:.0f} s: {cpu}")
    return measured


def _round(sides: list[Side], arguments: argparse.Namespace) -> report.Round:
    measured: dict[tuple[str, str], paths.Sample] = {}
    for side in sides:
        samples = _samples(side, arguments)
        measured |= {(side.name, path): sample for path, sample in samples.items()}
    for side in sides:
        if arguments.backlog and side.name in WITH_BACKLOG:
            measured[side.name, "backlog"] = paths.backlog_of(side, operations=arguments.backlog)
    return measured


def _samples(side: Side, arguments: argparse.Namespace) -> dict[str, paths.Sample]:
    if isinstance(side, Reads):
        return paths.reads_of(side, operations=arguments.operations)
    return paths.round_of(side, operations=arguments.operations, latencies=arguments.latencies)


def _say(line: str) -> None:
    print(f"bench: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
