"""A worker dies in the middle of a sync, without a word. Its child that runs it, or the parent of both."""

import signal

import pytest

from deploy.local.provider_store import Fault
from tests.faults.lab import RECOVERY_SECONDS, eventually

pytestmark = [pytest.mark.process, pytest.mark.embedded, pytest.mark.broker]

TAKEN_BACK = [
    ("", "queued", "accepted"),
    ("queued", "processing", ""),
    ("processing", "retry_scheduled", "worker_lost"),
    ("retry_scheduled", "processing", ""),
    ("processing", "succeeded", ""),
]


@pytest.fixture(scope="module", params=["true", "false"], ids=["redelivered", "never-redelivered"])
def lab(new_lab, request):
    env = {"REDELIVER_LOST": request.param}
    return new_lab("provider", "web", "worker-inventory", "relay", env=env)


def start_sync(lab, *, answer_after):
    """Ask for a sync whose first call is answered that much later, and wait until it was made."""
    user = lab.new_user()
    lab.set_items(user, 3, sword=1, potion=5)
    lab.provider.fail(Fault(user_id=user.id, times=1, delay_seconds=answer_after))
    id = user.ask("inventory/sync")
    eventually(lambda: lab.provider.journal(operation_id=id), what="a call to the provider")
    return user, id


class TestKilledMidSync:
    def test_child_leaves_the_sync_processing_for_ever(self, lab):
        user, id = start_sync(lab, answer_after=60)

        lab.worker.kill(signal.SIGKILL, whom="children")

        operation = lab.wait_final(id, within=RECOVERY_SECONDS)
        assert operation["status"] == "succeeded"
        assert (operation["runs"], operation["attempt"]) == (2, 2)
        assert lab.history(id) == TAKEN_BACK
        assert lab.items(user) == {"sword": (1, 3), "potion": (5, 3)}
        assert user.inventory()["version"] == 3

    def test_parent_leaves_the_sync_to_an_orphan_or_to_nobody(self, lab):
        """Celery's children die with their parent, so nobody is left who could hold the claim."""
        user, id = start_sync(lab, answer_after=60)
        lost = lab.operation(id)["claimed_by"]
        children = lab.worker.children()

        lab.worker.kill(signal.SIGKILL, whom="parent")
        lab.start_again(lab.worker)

        operation = lab.wait_final(id, within=RECOVERY_SECONDS)
        assert not any(child.is_running() for child in children)
        assert operation["status"] == "succeeded"
        assert (operation["runs"], operation["attempt"]) == (2, 2)
        assert lab.history(id) == TAKEN_BACK
        taken_back = lab.moves(id)[2]
        assert (taken_back["actor"], taken_back["error"]) == ("relay", f"{lost} was lost in run 1")
        assert lab.items(user) == {"sword": (1, 3), "potion": (5, 3)}
