"""A worker is stopped for longer than its lease lasts, and wakes when another has its operation."""

import signal

import pytest

from deploy.local.provider_store import Fault
from tests.faults.lab import eventually
from tests.faults.scenarios import refuse_a_worker_that_slept, worker_of

pytestmark = [pytest.mark.process, pytest.mark.embedded]

TWO_WORKERS = ("provider", "web", "worker-inventory", "worker-inventory#2", "relay")


@pytest.fixture(scope="module")
def lab(new_lab):
    return new_lab(*TWO_WORKERS, env={"WORKER_SLOTS": "1"})


class TestWokenWorker:
    def test_commits_while_another_works(self, lab):
        refuse_a_worker_that_slept(lab)

        assert lab.counted("ops_fence_rejected_total", job_type="probe.sleep") >= 1

    def test_puts_old_rows_over_new_ones(self, lab):
        user = lab.new_user()
        lab.set_items(user, 1, sword=1, potion=5)
        lab.provider.fail(Fault(user_id=user.id, times=1, delay_seconds=1))
        id = user.ask("inventory/sync")
        eventually(lambda: lab.provider.journal(operation_id=id), what="a call to the provider")
        sleeper = worker_of(lab, id)
        sleeper.kill(signal.SIGSTOP, whom="group")
        lab.set_items(user, 2, sword=7)
        lab.wait_final(id)
        moves = lab.moves(id)

        sleeper.kill(signal.SIGCONT, whom="group")

        eventually(lambda: "operation.fence_rejected" in sleeper.output(), what="a refused commit")
        assert lab.items(user) == {"sword": (7, 2)}
        assert lab.moves(id) == moves
        assert user.inventory() == {"version": 2, "items": [{"sku": "sword", "quantity": 7}]}
