"""One trap for all processes of a stack: whoever passes a point for the nth time, counted over all, dies.

CRASHPOINTS speaks to one process from its start, and to the one that takes its place as well. The trap is a
file that the test writes while they run; it springs once, and says when.
"""

import fcntl
import json
import os
import signal
import sys
import time
from io import TextIOWrapper
from pathlib import Path

from django.conf import settings

from operations import crashpoints
from tasks import drain

FILE = os.environ.get("TRAP")
PROGRAMS = {"gunicorn": "web", "celery": "worker"}  # anything else is the relay


def lay() -> None:
    """Have every point ask the trap, if there is one."""
    if FILE is not None:
        settings.CRASHPOINTS = dict.fromkeys(crashpoints.POINTS, "trap")
        crashpoints._obey = step_on


def step_on(point: str, action: str) -> None:
    """Die if the trap waits for this process here; count down if it waits for a later passage."""
    with Path(str(FILE)).open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        trap = json.loads(file.read() or "{}")
        if (trap.get("point"), trap.get("process")) != (point, process()) or not trap["left"]:
            return
        trap["left"] -= 1
        if trap["left"]:
            _write(file, trap)
            return
        _write(file, {**trap, "sprung_at": time.time()})
        _die(whole=trap["whole"])


def process() -> str:
    """Say what this process is: web, relay, worker for a child of its pool, or that child's parent."""
    kind = PROGRAMS.get(Path(sys.argv[0]).name, "relay")
    return "worker's parent" if kind == "worker" and not drain.in_child() else kind


def _write(file: TextIOWrapper, trap: dict[str, object]) -> None:
    file.seek(0)
    file.truncate()
    file.write(json.dumps(trap))
    file.flush()


def _die(*, whole: bool) -> None:
    if whole:
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
