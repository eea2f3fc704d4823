"""The relay takes back what lost workers held: theirs only, as often as the operation allows, and wholly."""

import signal
import time
import uuid

import pytest

from tests.faults.lab import LEASE_SECONDS, RECOVERY_SECONDS, RELAY_PERIOD_SECONDS
from tests.faults.scenarios import worker_of

pytestmark = [pytest.mark.process, pytest.mark.embedded]

LONG_RUN_SECONDS = 3 * LEASE_SECONDS
SECONDS = 8  # so long that every run which is to be killed is


@pytest.fixture(scope="module")
def lab(new_lab):
    return new_lab("web", "worker-inventory", "worker-inventory#2", "relay", env={"WORKER_SLOTS": "1"})


@pytest.fixture
def lose(lab):
    """Give a function that kills the worker of an operation, parent and child: only the relay is left."""
    lost = []

    def lose(id):
        lost.append(worker_of(lab, id))
        lost[-1].kill(signal.SIGKILL, whom="group")

    yield lose
    for worker in lost:
        lab.start_again(worker)


def start(lab, seconds):
    """Ask for a job that sleeps, and wait until it runs."""
    ref = uuid.uuid4().hex
    id = lab.new_user().ask("probe/sleep", {"ref": ref, "seconds": seconds})
    lab.wait_effects(ref)
    return id, ref


class TestTakeBack:
    """C03."""

    def test_revives_a_healthy_job_that_runs_long(self, lab):
        """C03 part 1: how long it has been running says nothing, its beats do."""
        id, ref = start(lab, LONG_RUN_SECONDS)

        operation = lab.wait_final(id)

        assert (operation["status"], operation["runs"], operation["attempt"]) == ("succeeded", 1, 1)
        assert lab.effects.count(ref) == 1

    def test_ignores_the_operations_own_maximum(self, lab, lose):
        """C03 part 2: the row says one attempt, whatever the job's contract says."""
        id, ref = start(lab, SECONDS)
        lab.rows("UPDATE operations_operation SET max_attempts = 1 WHERE id = %s RETURNING id", id)

        lose(id)

        operation = lab.wait_final(id, within=RECOVERY_SECONDS)
        assert (operation["status"], operation["reason"]) == ("failed_permanent", "worker_lost")
        assert lab.moves(id)[-1]["actor"] == "relay"
        time.sleep(LEASE_SECONDS + 2 * RELAY_PERIOD_SECONDS)
        assert lab.effects.count(ref) == 1, "it was started again"
        assert lab.operation(id)["runs"] == 1

    def test_is_slow_to_give_a_lost_job_to_the_next(self, lab, lose):
        """C03 part 3: the second attempt."""
        id, ref = start(lab, SECONDS)

        lose(id)
        lost_at = time.monotonic()

        lab.wait_effects(ref, 2)
        assert time.monotonic() - lost_at < RECOVERY_SECONDS
        operation = lab.wait_final(id)
        assert (operation["status"], operation["attempt"]) == ("succeeded", 2)

    def test_resets_half_a_row(self, lab, lose):
        """C03 part 3: the row as the relay leaves it, while the other worker can't take it yet."""
        id, _ = start(lab, SECONDS)
        [other] = [worker for worker in lab.workers if worker is not worker_of(lab, id)]
        other.kill(signal.SIGSTOP, whom="group")

        lose(id)

        row = lab.wait_for(id, "retry_scheduled")
        assert (row["claimed_by"], row["lease_expires_at"]) == ("", None)
        assert (row["reason"], row["attempt"]) == ("worker_lost", 1)
        other.kill(signal.SIGCONT, whom="group")
        operation = lab.wait_final(id)
        assert (operation["status"], operation["attempt"]) == ("succeeded", 2)
