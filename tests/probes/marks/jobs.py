"""A job that lives as it is told. Its steps and its finish write rows that forbid nothing: doubles show."""

import os
import signal
import time
from typing import Any

import httpx
from django.db import connection
from rest_framework import serializers

from operations.jobs import Backoff, Payload, Rejected, job
from tasks import holds
from tasks.retry import CallFailed
from tests.probes.jobs import EFFECTS_URL, tell
from tests.probes.marks import PAUSE_SECONDS

FAILS_AT = 7
EFFECT_SECONDS = 0.5  # after which nobody waits for an answer any more
MARK = (
    "INSERT INTO probe_mark (ref, what, operation_id, run, resource, fence) VALUES (%s, %s, %s, %s, %s, %s)"
)


class Life(Payload):
    """Under which name it acts, how, on which resource if any, and how long its first and later runs take."""

    ref = serializers.CharField(max_length=100)
    how = serializers.CharField()
    resource = serializers.CharField(allow_blank=True)
    seconds = serializers.FloatField(default=0)
    then_seconds = serializers.FloatField(default=0)


def mark(run: Any, ref: str, what: str) -> None:
    """Write a row that tells who wrote it, and look at nothing."""
    operation = run.claim.operation
    values = (ref, what, operation.id, run.number, operation.resource, run.claim.fence)
    with connection.cursor() as cursor:
        cursor.execute(MARK, values)


def work(run: Any, ref: str, **times: float) -> None:
    """Do two steps with an effect between them, and leave something for later."""
    run.step("first", mark, run=run, ref=ref, what="first")
    tell(run, ref=ref)
    run.step("second", mark, run=run, ref=ref, what="second")
    run.follow_up("probe.life", {"ref": f"{ref}-after", "how": "plain", "resource": ""})


def plain(run: Any, ref: str, **times: float) -> None:
    tell(run, ref=ref)


def buy(run: Any, ref: str, **times: float) -> None:
    """Do one thing outside that must never be done twice."""
    run.step("first", mark, run=run, ref=ref, what="first")
    run.effect("paid", send, request={"ref": ref}, look_up=look_up, timeout=EFFECT_SECONDS)


def shy(run: Any, ref: str, **times: float) -> None:
    """Do something here and something outside, and then think better of it."""
    run.step("reserved", mark, run=run, ref=ref, what="reserved")
    run.effect("held", send, request={"ref": ref}, look_up=look_up, timeout=EFFECT_SECONDS)
    raise Rejected("no", "it is not wanted after all")


def post(run: Any, ref: str, **times: float) -> None:
    """Do something outside that nobody can be asked about."""
    run.effect("posted", send, request={"ref": ref}, timeout=EFFECT_SECONDS)


def batch(run: Any, ref: str, **times: float) -> None:
    """Do ten things outside, and fail at the seventh once."""
    for item in range(1, 11):
        if item == FAILS_AT and run.number == 1:
            raise CallFailed("dependency_unavailable", "not at the first time")
        request = {"ref": f"{ref}-{item}"}
        run.effect(f"item_{item}", send, request=request, look_up=look_up, timeout=EFFECT_SECONDS)


def release(run: Any, *, ref: str, **payload: Any) -> None:
    """Undo what `shy` has done."""
    if run.outcome("held", look_up=look_up) is not None:
        run.effect("let_go", send, request={"ref": f"{ref}-let-go"}, look_up=look_up, timeout=EFFECT_SECONDS)
    run.step("released", mark, run=run, ref=ref, what="released")


def send(key: str, request: Any) -> Any:
    try:
        answer = httpx.post(
            f"{EFFECTS_URL}/effects/{request['ref']}",
            headers={"Idempotency-Key": key},
            timeout=EFFECT_SECONDS,
            trust_env=False,
        )
    except httpx.HTTPError as error:
        raise CallFailed("outcome_unknown", type(error).__name__) from error
    return {"status": answer.status_code}


def look_up(key: str, request: Any) -> Any:
    try:
        answer = httpx.get(f"{EFFECTS_URL}/keys/{key}", timeout=EFFECT_SECONDS, trust_env=False)
    except httpx.HTTPError as error:
        raise CallFailed("dependency_unavailable", type(error).__name__) from error
    return {"status": answer.status_code} if answer.status_code == httpx.codes.OK else None


def falter(run: Any, ref: str, **times: float) -> None:
    """Fail once in a way that passes."""
    if run.number == 1:
        raise CallFailed("dependency_unavailable", "not at the first time")
    tell(run, ref=ref)


def mend(run: Any, ref: str, **times: float) -> None:
    """Fail for good until somebody has mended the cause."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT FROM probe_mark WHERE ref = %s AND what = 'mended'", [ref])
        if not cursor.rowcount:
            raise CallFailed("invalid_input", "not until it is mended")
    tell(run, ref=ref)


def stall(run: Any, ref: str, seconds: float, then_seconds: float) -> None:
    """Stand still in the first run, until the next is at work or the time is over; nobody sees it stand.

    No heart beats, and the parent does not know what its child holds.
    """
    tell(run, ref=ref)
    if run.number > 1:
        time.sleep(then_seconds)
        return
    run.heartbeat.__exit__(None, None, None)
    holds.let_go()
    give_up_at = time.monotonic() + seconds
    while time.monotonic() < give_up_at and not begun_again(run):
        time.sleep(0.1)
    tell(run, ref=f"{ref}-woke")


def begun_again(run: Any) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT runs FROM operations_operation WHERE id = %s", [run.operation_id])
        return bool(cursor.fetchone()[0] > run.number)


def die(run: Any, ref: str, **times: float) -> None:
    """Take the child along, once."""
    tell(run, ref=ref)
    if run.number == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def perish(run: Any, ref: str, **times: float) -> None:
    """Take every child along."""
    tell(run, ref=ref)
    os.kill(os.getpid(), signal.SIGKILL)


LIVES = {
    life.__name__: life for life in (work, plain, buy, shy, post, batch, falter, mend, stall, die, perish)
}


def live(run: Any, *, how: str, resource: str, **how_long: Any) -> None:
    LIVES[how](run, **how_long)


@job(
    "probe.life",
    route="probe/life",
    payload=Life,
    resource="{resource}",
    call=live,
    compensate=release,
    no_return="paid",
    retry=Backoff(PAUSE_SECONDS, PAUSE_SECONDS),
    soft_limit=20,
    hard_limit=25,
)
def lived(run: Any, answer: Any, *, ref: str, **payload: Any) -> dict[str, int]:
    """Live as it is told."""
    mark(run, ref, "done")
    return {"run": run.number}
