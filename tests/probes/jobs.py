"""Jobs to be harmed. Each has its one effect on the stub before it does what it is called for; `fail` after.

The queues are those of LAB in tests/faults/lab.py; EFFECTS_URL is where the stub listens.
"""

import os
import time
from typing import Any

import httpx
from rest_framework import serializers

from operations.jobs import Backoff, Payload, job
from tasks.retry import CallFailed, retry_after_seconds

EFFECTS_URL = os.environ["EFFECTS_URL"]
SHORT = {"retry": Backoff(1, 2), "soft_limit": 3, "hard_limit": 5}  # seconds; three attempts
CATEGORIES = {400: "invalid_input", 404: "not_found", 409: "conflict", 429: "rate_limited"}


class Probe(Payload):
    """Under which name its effects are counted."""

    ref = serializers.CharField(max_length=100)


class Sleep(Probe):
    """How long to take, and whether to burn the processor meanwhile."""

    seconds = serializers.FloatField(min_value=0)
    cpu = serializers.BooleanField(default=False)


class Fail(Probe):
    """In which way and in how many runs to fail; `bug` is an exception nobody foresaw."""

    kind = serializers.CharField()
    times = serializers.IntegerField(min_value=0)
    retry_after = serializers.IntegerField(default=0)  # seconds that the other side asks for


class Die(Probe):
    """By which signal to die, and in how many runs."""

    signal = serializers.IntegerField(default=9)
    times = serializers.IntegerField(default=1_000)


class Alloc(Probe):
    """How much memory to fill."""

    mb = serializers.IntegerField(min_value=0)


class Swallow(Probe):
    """How long to go on, whatever is raised meanwhile."""

    seconds = serializers.FloatField(min_value=0)


def tell(run: Any, *, ref: str) -> None:
    """Have one effect on the outside."""
    headers = {
        "Idempotency-Key": run.key("effect"),
        "X-Operation-ID": run.operation_id,
        "X-Run": str(run.number),
    }
    try:
        answer = httpx.post(f"{EFFECTS_URL}/effects/{ref}", headers=headers, timeout=5, trust_env=False)
    except httpx.TimeoutException as error:
        raise CallFailed("timeout", "no answer") from error
    except httpx.TransportError as error:
        raise CallFailed("dependency_unavailable", type(error).__name__) from error
    if answer.is_error:
        category = CATEGORIES.get(answer.status_code, "dependency_unavailable")
        after = retry_after_seconds(answer.headers.get("Retry-After"))
        raise CallFailed(category, f"HTTP {answer.status_code}", retry_after_seconds=after)


def sleep(run: Any, *, ref: str, seconds: float, cpu: bool) -> None:
    tell(run, ref=ref)
    end = time.monotonic() + seconds
    while cpu and time.monotonic() < end:
        pass
    time.sleep(max(0.0, end - time.monotonic()))


def heed(run: Any, *, ref: str, seconds: float, cpu: bool) -> None:
    tell(run, ref=ref)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        run.check()
        time.sleep(0.05)


def fail(run: Any, *, ref: str, kind: str, times: int, retry_after: int) -> None:
    if run.number > times:
        tell(run, ref=ref)
    elif kind == "bug":
        raise RuntimeError("a probe was told to fail")
    else:
        raise CallFailed(kind, "a probe was told to fail", retry_after_seconds=retry_after)


def die(run: Any, *, ref: str, signal: int, times: int) -> None:
    tell(run, ref=ref)
    if run.number <= times:
        os.kill(os.getpid(), signal)


def alloc(run: Any, *, ref: str, mb: int) -> None:
    tell(run, ref=ref)
    filled = bytearray(mb << 20)
    filled[:: os.sysconf("SC_PAGESIZE")] = b"x" * len(filled[:: os.sysconf("SC_PAGESIZE")])


def swallow(run: Any, *, ref: str, seconds: float) -> None:
    tell(run, ref=ref)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            time.sleep(max(0.0, end - time.monotonic()))
        except Exception:
            continue


@job("probe.effect", route="probe/effect", payload=Probe, call=tell, **SHORT)
def told(run: Any, answer: Any, **payload: Any) -> dict[str, int]:
    """Have one effect."""
    return {"run": run.number}


@job(
    "probe.sleep",
    route="probe/sleep",
    payload=Sleep,
    call=sleep,
    retry=Backoff(1, 2),
    soft_limit=20,
    hard_limit=25,
)
def slept(run: Any, answer: Any, **payload: Any) -> dict[str, int]:
    """Take its time."""
    return {"run": run.number}


@job(
    "probe.heed",
    route="probe/heed",
    payload=Sleep,
    call=heed,
    retry=Backoff(1, 2),
    soft_limit=20,
    hard_limit=25,
)
def heeded(run: Any, answer: Any, **payload: Any) -> dict[str, int]:
    """Take its time, and look again and again whether it is still wanted."""
    return {"run": run.number}


@job("probe.fail", route="probe/fail", payload=Fail, call=fail, **SHORT)
def failed(run: Any, answer: Any, **payload: Any) -> dict[str, int]:
    """Fail so many times, then have its effect."""
    return {"run": run.number}


@job("probe.die", route="probe/die", payload=Die, call=die, **SHORT)
def died(run: Any, answer: Any, **payload: Any) -> dict[str, int]:
    """Take its worker along."""
    return {"run": run.number}


@job("probe.alloc", route="probe/alloc", payload=Alloc, call=alloc, **SHORT)
def allocated(run: Any, answer: Any, **payload: Any) -> dict[str, int]:
    """Fill memory."""
    return {"run": run.number}


@job("probe.swallow", route="probe/swallow", payload=Swallow, call=swallow, **SHORT)
def swallowed(run: Any, answer: Any, **payload: Any) -> dict[str, int]:
    """Catch whatever is raised around its work."""
    return {"run": run.number}
