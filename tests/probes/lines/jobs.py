"""Jobs that want one resource at once: to hold it, to stand in its line, or to bring it a version."""

import time
from operator import itemgetter
from typing import Any

from django.db import connection
from rest_framework import serializers

from operations.jobs import Backoff, Payload, ResourceVersion, job
from tests.probes.jobs import tell

WRITE = "INSERT INTO probe_line (what, operation_id, run, fence, seen) VALUES (%s, %s, %s, %s, %s)"
CONTRACT = {"retry": Backoff(1, 1), "soft_limit": 20, "hard_limit": 25}  # seconds


class Turn(Payload):
    """On what to work, for how long, and whether to fail at the end."""

    ref = serializers.CharField(max_length=100)
    what = serializers.CharField(max_length=100)
    seconds = serializers.FloatField(default=0)
    fail = serializers.BooleanField(default=False)


class Bring(Payload):
    """Which version of what, and how long it takes to bring."""

    what = serializers.CharField(max_length=100)
    version = serializers.IntegerField(min_value=1)
    seconds = serializers.FloatField(default=0)


class State(Payload):
    """A version of what, how it says it is, and how long it takes."""

    what = serializers.CharField(max_length=100)
    version = ResourceVersion()
    content = serializers.CharField(default="")
    seconds = serializers.FloatField(default=0)


def write(run: Any, what: str, seen: str) -> None:
    """Write a row, whatever is there."""
    operation = run.claim.operation
    with connection.cursor() as cursor:
        cursor.execute(WRITE, (what, operation.id, run.number, run.claim.fence, seen))


def hold(run: Any, *, ref: str, seconds: float, fail: bool, **payload: Any) -> None:
    """Take the first run's time, and no later one's."""
    tell(run, ref=ref)
    if run.number == 1:
        time.sleep(seconds)
        if fail:
            raise ValueError("a probe was told to fail")


def bring(run: Any, *, version: int, seconds: float, **payload: Any) -> dict[str, int]:
    time.sleep(seconds)
    return {"version": version}


@job("probe.hold", route="probe/hold", payload=Turn, resource="probe:hold:{what}", call=hold, **CONTRACT)
def held(run: Any, answer: Any, *, ref: str, what: str, **payload: Any) -> dict[str, int]:
    """Hold a resource for a while, then write that it did."""
    write(run, what, ref)
    return {"run": run.number}


@job(
    "probe.turn",
    route="probe/turn",
    payload=Turn,
    resource="probe:line:{what}",
    ordered=True,
    call=hold,
    **CONTRACT,
)
def took_turn(run: Any, answer: Any, *, ref: str, what: str, **payload: Any) -> None:
    """Write when its turn has come."""
    write(run, what, ref)


@job(
    "probe.version",
    route="probe/version",
    payload=Bring,
    resource="probe:version:{what}",
    version=itemgetter("version"),
    call=bring,
    **CONTRACT,
)
def brought(run: Any, answer: dict[str, int], *, what: str, version: int, **payload: Any) -> None:
    """Write a version over whatever is there."""
    write(run, what, str(version))


@job(
    "probe.stated",
    route="probe/stated",
    payload=State,
    resource="probe:stated:{what}",
    call=bring,
    **CONTRACT,
)
def was_stated(run: Any, answer: Any, *, what: str, version: int, **payload: Any) -> None:
    """Write the version that the request brings over whatever is there."""
    write(run, what, str(version))
