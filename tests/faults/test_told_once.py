"""What ends a child is told once, by who knows why. Celery's error lines are left for what nobody meant."""

import json
import signal
import time

import psutil
import pytest

from tests.faults.lab import eventually
from tests.faults.stubborn import STUBBORN, begin

pytestmark = [pytest.mark.process, pytest.mark.embedded]

FOR_EVER = 15
NOTICED_SECONDS = 6.5  # Celery gives a child up five seconds after its end, and looks every second
SETTINGS = {
    "WORKER_SLOTS": "2",
    "LEASE_SECONDS": "30",
    "GRACE_SECONDS": "10",
    "GRACE_MARGIN_SECONDS": "7.5",
}


@pytest.fixture(scope="module")
def lab(new_lab):
    return new_lab("web", "worker-inventory", "relay", env={**STUBBORN, **SETTINGS})


@pytest.fixture
def worker(lab):
    """The worker, its log begun anew."""
    lab.worker.restart()
    return lab.worker


def errors(worker):
    """Give the error lines of a worker: who logged what."""
    lines = [json.loads(line) for line in worker.output().splitlines() if line.startswith("{")]
    return [(line["logger"], line["event"]) for line in lines if line["level"] in ("ERROR", "CRITICAL")]


def stay(lab, how, job="long"):
    """Begin a run that stays too long, and give the pid of the child that does it."""
    begun = begin(lab, how, seconds=FOR_EVER, job=job)
    lab.rows("UPDATE operations_operation SET deadline_at = now() WHERE id = %s RETURNING id", begun.id)
    return int(lab.moves(begun.id)[1]["actor"].rpartition("/")[2])


def wait_until_noticed(worker, child, told):
    eventually(lambda: not psutil.pid_exists(child), what="the end of the child")
    eventually(lambda: told in worker.output(), what=told)
    if worker.is_alive():
        time.sleep(NOTICED_SECONDS)


class TestMeantEnd:
    @pytest.mark.parametrize("whom", ["parent", "group"])
    def test_by_drain_is_no_error(self, lab, worker, whom):
        child = stay(lab, "sleep")

        worker.kill(signal.SIGTERM, whom=whom)

        wait_until_noticed(worker, child, "operation.interrupted")
        eventually(lambda: not worker.is_alive(), what="the end of the worker")
        assert errors(worker) == []

    def test_of_one_child_is_no_error(self, lab, worker):
        child = stay(lab, "sleep")

        psutil.Process(child).terminate()

        wait_until_noticed(worker, child, "operation.interrupted")
        assert errors(worker) == []

    @pytest.mark.parametrize("how", ["deaf", "native"])
    def test_at_the_hard_limit_is_no_error(self, lab, worker, how):
        child = stay(lab, how, job="short")

        wait_until_noticed(worker, child, "operation.taken_back")

        assert errors(worker) == []


class TestRealLoss:
    @pytest.mark.parametrize(
        ("how", "why"),
        [("killed", "signal 9 (SIGKILL)"), ("segfault", "signal 11 (SIGSEGV)"), ("left", "exitcode 0")],
    )
    def test_is_an_error_once(self, lab, worker, how, why):
        child = stay(lab, how)

        wait_until_noticed(worker, child, "operation.taken_back")

        [(logger, event)] = errors(worker)
        assert logger == "celery.worker.request"
        assert why in event
