"""Play the story of a flaky console on the whole stack, and check every promise: `make demo`."""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import httpx
import psutil
import psycopg
import redis

from deploy.local import checks, shopping, story, troubles
from deploy.local.binaries import ServerMissing
from deploy.local.console import NoAnswer
from deploy.local.ending import end_on_signals
from deploy.local.process import ProcessFailed
from deploy.local.server import ServerFailed
from deploy.local.servers import Servers
from deploy.local.stack import USUAL, Stack
from deploy.local.stage import Stage
from deploy.local.telling import Broken, Telling

PREFACE = """Three consoles, one platform, real processes, real faults.
Left, the seconds since a step began. A ✓ is a promise that was looked at and kept."""
INTERRUPTED = 130  # what a shell says of a program that ended by Ctrl-C

Step = Callable[[Stage], None]

STEPS: tuple[Step, ...] = (
    story.first_sync,
    story.ten_at_once,
    story.answer_lost,
    story.key_misused,
    story.page_resumed,
    troubles.provider_fails,
    troubles.worker_killed,
    troubles.worker_frozen,
    troubles.broker_flushed,
    troubles.cache_left_stale,
    checks.everything,
    shopping.double_click,
    shopping.gateway_drops,
    shopping.killed_after_capture,
    shopping.webhooks_late,
    shopping.books_balanced,
)
PROCESSES = ("gateway", *USUAL)
SETTINGS = {**troubles.SETTINGS, **shopping.SETTINGS}


def main() -> int:
    arguments = _arguments()
    end_on_signals()
    telling = Telling(None if arguments.json else sys.stdout)
    directory = (
        arguments.directory / "demo" / str(os.getpid())
    )  # its own, so that demos run beside each other
    began = time.monotonic()
    telling.line(PREFACE)
    try:
        broken = _on_a_stack_of_its_own(directory, telling)
    except KeyboardInterrupt:
        shutil.rmtree(directory, ignore_errors=True)
        print("demo: interrupted", file=sys.stderr)
        return INTERRUPTED

    report = json.dumps({"ok": broken is None, "steps": [step.report() for step in telling.steps]}, indent=2)
    _write(arguments.directory / "reports" / "demo.json", report)
    if arguments.json:
        print(report)
    if broken is not None:
        shortly = broken.seen.partition("\n")[0]  # of a log's end, which was told above
        telling.line(f"\nlogs: {directory}/log/\ndemo: broken — {broken.promise}: {shortly}")
        return 1
    shutil.rmtree(directory, ignore_errors=True)
    telling.line(f"\ndemo: ok, {_counted(telling)}, {time.monotonic() - began:.0f} s")
    return 0


def play(stack: Stack, telling: Telling, steps: Sequence[Step] = STEPS) -> Broken | None:
    """Play steps on a running stack, up to the first promise that is broken, and give it."""
    try:
        with closing(Stage(stack, telling)) as stage:
            for step in steps:
                telling.begin(step.__name__.replace("_", "-"), str(step.__doc__))
                step(stage)
    except Broken as broken:
        return telling.broken(broken)
    except (NoAnswer, httpx.HTTPError, psycopg.Error, redis.RedisError) as silence:
        return telling.broken(Broken("every server answers", f"{type(silence).__name__}: {silence}"))
    return None


def _on_a_stack_of_its_own(directory: Path, telling: Telling) -> Broken | None:
    telling.begin("start", "A whole Teguh comes up on this machine, from nothing.")
    try:
        telling.say("servers", "PostgreSQL and Valkey …")
        with Servers(directory / "servers", durable=False) as servers:
            telling.say("stack", f"database, {', '.join(PROCESSES)} …")
            with Stack(directory, servers=servers, processes=PROCESSES, env=SETTINGS) as stack:
                telling.say("stack", "ready")
                broken = play(stack, telling)
        return _look_that_all_ended(stack, telling) if broken is None else broken
    except (ServerFailed, ServerMissing, ProcessFailed) as failure:
        return telling.broken(Broken("every process starts", str(failure)))


def _look_that_all_ended(stack: Stack, telling: Telling) -> Broken | None:
    telling.begin("stop", "Everything is asked to end, and does.")
    codes = {name: process.exit_code() for name, process in stack.processes.items()}
    telling.say("stack", ", ".join(f"{name} {code}" for name, code in codes.items()))
    left = [process.name() for process in psutil.Process().children(recursive=True)]
    if left or any(codes.values()):
        return telling.broken(
            Broken("every process ends with 0 and leaves none behind", f"{codes}, left {left}")
        )
    telling.kept("every process ends with 0 and leaves none behind")
    return None


def _counted(telling: Telling) -> str:
    kept = sum(line.startswith("kept: ") for step in telling.steps for line in step.seen)
    return f"{len(telling.steps)} steps, {kept} promises looked at and kept"


def _write(file: Path, report: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{report}\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the report and nothing else")
    parser.add_argument("--directory", type=Path, default=Path("var"), help="logs and report (default: var)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
