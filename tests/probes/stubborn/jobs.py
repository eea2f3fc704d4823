"""Jobs that take long. They differ in where they could be stopped, and whether they let themselves be."""

import ctypes
import os
import signal
import time
from typing import Any

from django.db import connection
from rest_framework import serializers

from operations.jobs import Backoff, job
from tests.probes.jobs import Probe, tell

TURN_SECONDS = 0.1
_holding_the_gil = ctypes.PyDLL(None)  # calls through it keep the interpreter for themselves
_asleep: Any = _holding_the_gil.usleep


class Stay(Probe):
    """How long to stay, in which way, and on what."""

    seconds = serializers.FloatField(min_value=0)
    how = serializers.CharField()
    where = serializers.ChoiceField(["call", "handler"], default="call")
    thing = serializers.CharField()


def call(run: Any, *, ref: str, seconds: float, how: str, where: str, thing: str) -> None:
    tell(run, ref=ref)
    if where == "call":
        WAYS[how](run, time.monotonic() + seconds)
        tell(run, ref=f"{ref}-left")


def handle(run: Any, answer: Any, *, seconds: float, how: str, where: str, **payload: Any) -> dict[str, int]:
    if where == "handler":
        WAYS[how](run, time.monotonic() + seconds)
    return {"run": run.number}


def sleep(run: Any, end: float) -> None:
    """Wait for the outside, without a look left or right."""
    time.sleep(max(0.0, end - time.monotonic()))


def check(run: Any, end: float) -> None:
    """Ask between two parts of the work whether to go on."""
    while time.monotonic() < end:
        time.sleep(TURN_SECONDS)
        run.check()


def steps(run: Any, end: float) -> None:
    """Record each part of the work."""
    parts = 0
    while time.monotonic() < end:
        time.sleep(TURN_SECONDS)
        parts += 1
        run.step(f"part-{parts}", lambda: None)


def python(run: Any, end: float) -> None:
    """Burn the processor in pure Python."""
    while time.monotonic() < end:
        pass


def deaf(run: Any, end: float) -> None:
    """Go on whatever is raised, and burn the processor."""
    while time.monotonic() < end:
        try:
            python(run, end)
        except BaseException:
            continue


def native(run: Any, end: float) -> None:
    """Be in C code that keeps the interpreter for itself: no other thread runs, and no signal is handled."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGTERM, signal.SIGQUIT})
    _asleep(int(max(0.0, end - time.monotonic()) * 1_000_000))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def statement(run: Any, end: float) -> None:
    """Wait for the database."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(%s)", [max(0.0, end - time.monotonic())])


def unheard(run: Any, end: float) -> None:
    """Have a heartbeat that has stopped without a word."""
    run.heartbeat.look = lambda: None
    sleep(run, end)


def killed(run: Any, end: float) -> None:
    """Die as for want of memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def segfault(run: Any, end: float) -> None:
    """Die of a bug in C code."""
    ctypes.string_at(0)


def left(run: Any, end: float) -> None:
    """Die of a library that ends the process, without an error."""
    os._exit(0)


WAYS = {
    "unheard": unheard,
    "killed": killed,
    "segfault": segfault,
    "left": left,
    "sleep": sleep,
    "check": check,
    "steps": steps,
    "python": python,
    "deaf": deaf,
    "native": native,
    "statement": statement,
}
STUBBORN: dict[str, Any] = {
    "payload": Stay,
    "call": call,
    "resource": "stubborn:{thing}",
    "retry": Backoff(1, 2),
}


@job("stubborn.long", route="stubborn/long", soft_limit=20, hard_limit=25, **STUBBORN)
def stay_long(run: Any, answer: Any, **payload: Any) -> dict[str, int]:
    """Stay as long as it likes."""
    return handle(run, answer, **payload)


@job("stubborn.short", route="stubborn/short", soft_limit=1.5, hard_limit=3, **STUBBORN)
def stay_short(run: Any, answer: Any, **payload: Any) -> dict[str, int]:
    """Stay longer than it may."""
    return handle(run, answer, **payload)
