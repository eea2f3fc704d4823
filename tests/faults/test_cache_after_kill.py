"""The worker dies or fails between the commit and the invalidation; then the broker loses everything too."""

import signal
import time

import pytest

from tests.faults.lab import RELAY_PERIOD_SECONDS, eventually

pytestmark = [pytest.mark.process, pytest.mark.embedded]

LOOKING_SECONDS = 0.5  # a GET, and what passed since the last one


@pytest.fixture(scope="module")
def lab(new_lab):
    lab = new_lab("provider", "web", "worker-inventory", "relay")
    lab.crash_at("worker-inventory", "after_commit.begin=kill")
    return lab


class TestKilledBetweenCommitAndInvalidation:
    def test_the_old_inventory_is_served_until_its_entry_expires(self, lab):
        user = lab.new_user()
        assert user.inventory() == {"version": 0, "items": []}  # and it is cached from here on
        lab.set_items(user, 1, sword=1)
        relay = lab.stack.process("relay")
        relay.kill(signal.SIGSTOP)
        try:
            id = user.ask("inventory/sync")
            lab.wait_final(id)
            lab.flush_broker()
            stale = user.inventory()
        finally:
            relay.kill(signal.SIGCONT)
        woken_at = time.monotonic()
        eventually(lambda: user.inventory()["version"] == 1, what="a fresh inventory")
        seconds = time.monotonic() - woken_at

        assert stale["version"] == 0, "the cache was told: nothing was killed"
        assert seconds < 2 * RELAY_PERIOD_SECONDS + LOOKING_SECONDS
        assert user.inventory()["items"] == [{"sku": "sword", "quantity": 1}]
        assert lab.history(id)[-1] == ("processing", "succeeded", "")
        eventually(lambda: not lab.rows("SELECT id FROM operations_aftercommit"), what="no work left over")

    def test_the_lock_of_the_dead_run_keeps_the_next_sync_out(self, lab):
        user = lab.new_user()
        lab.set_items(user, 1, sword=1)
        lab.wait_final(user.ask("inventory/sync"))
        lab.set_items(user, 2, sword=2)
        began = time.monotonic()

        operation = lab.wait_final(user.ask("inventory/sync"))

        assert (operation["status"], operation["attempt"]) == ("succeeded", 1)
        assert time.monotonic() - began < 2 * RELAY_PERIOD_SECONDS + LOOKING_SECONDS
        assert lab.items(user) == {"sword": (2, 2)}


class TestFailureAfterCommit:
    def test_a_sync_that_was_committed_counts_as_failed(self, lab):
        user = lab.new_user()
        lab.set_items(user, 1, sword=1)
        lab.crash_at("worker-inventory", "after_commit.begin=raise")
        user.inventory()

        id = user.ask("inventory/sync")

        operation = lab.wait_final(id)
        assert (operation["status"], operation["attempt"]) == ("succeeded", 1)
        eventually(
            lambda: user.inventory()["version"] == 1,
            within=2 * RELAY_PERIOD_SECONDS + LOOKING_SECONDS,
            what="a fresh inventory",
        )
        assert "operation.fence_rejected" not in lab.worker.output()
        assert "operation.succeeded" in lab.worker.output()
