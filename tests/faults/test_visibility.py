"""C01: work that waits or runs longer than Redis waits for an acknowledgement."""

import uuid
from datetime import UTC, datetime

import pytest

from tests.faults.lab import eventually

pytestmark = [pytest.mark.process, pytest.mark.embedded]

THREE_WORKERS = ("worker-inventory", "worker-inventory#2", "worker-inventory#3")
VISIBILITY_SECONDS = 2
# Workers look every 5 s for what is overdue (unacked_restore_interval): the second delivery comes within 7.
LONGER_SECONDS = 9

TIMES = {"eta", "countdown", "expires", "expiration", "delay", "x-delay"}  # Celery's, AMQP's and RabbitMQ's
DUE_AGAIN = """
    UPDATE operations_operation SET status = 'retry_scheduled', reason = 'timeout', attempt = 1, runs = 1,
        run_at = clock_timestamp(), published_at = NULL
    WHERE id = %s"""
ABANDONED = """
    UPDATE operations_operation SET status = 'processing', reason = '', attempt = 1, runs = 1,
        claim_token = gen_random_uuid(), claimed_by = 'nobody', started_at = clock_timestamp(),
        lease_expires_at = clock_timestamp()
    WHERE id = %s"""


@pytest.fixture(scope="module")
def lab(new_lab):
    env = {
        "WORKER_SLOTS": "1",
        "VISIBILITY_TIMEOUT_SECONDS": str(VISIBILITY_SECONDS),
        "BROKER_KEEPS_TAKEN": "true",
        "EXTRA_APPS": "tests.probes,tests.probes.switches.VisibilityUnchecked",
    }
    return new_lab("web", *THREE_WORKERS, "relay", env=env)


class TestVisibilityTimeout:
    def test_an_attempt_that_is_due_later_runs_once_in_every_worker(self, lab):
        """Part 1."""
        ref = uuid.uuid4().hex
        body = {"ref": ref, "kind": "rate_limited", "times": 1, "retry_after": LONGER_SECONDS}
        id = lab.new_user().ask("probe/fail", body)
        lab.wait_for(id, "retry_scheduled")
        eventually(lambda: lab.unacknowledged() == 0, what="the acknowledgement of the first delivery")

        run_at, unacknowledged = lab.operation(id)["run_at"], []

        def due() -> bool:
            unacknowledged.append(lab.unacknowledged())
            return datetime.now(UTC) > run_at

        eventually(due, what="the time of the second attempt")
        operation = lab.wait_final(id)
        assert not any(unacknowledged[:-1])  # the last look may see the second attempt's message
        assert (operation["status"], operation["runs"], operation["attempt"]) == ("succeeded", 2, 2)
        assert operation["finished_at"] > run_at
        assert lab.effects.count(ref) == 1

    def test_a_long_run_is_started_again_by_another_worker(self, lab):
        """Part 2."""
        before = lab.counted("ops_duplicate_deliveries_total", job_type="probe.sleep")

        run_longer_than_visible(lab)

        assert lab.counted("ops_duplicate_deliveries_total", job_type="probe.sleep") > before

    def test_a_long_run_is_started_again_after_the_broker_was_restarted(self, lab):
        """Part 3."""
        run_longer_than_visible(lab, meanwhile=restart_broker)


def run_longer_than_visible(lab, meanwhile=None):
    ref = uuid.uuid4().hex
    id = lab.new_user().ask("probe/sleep", {"ref": ref, "seconds": LONGER_SECONDS})
    lab.wait_effects(ref, 1)
    if meanwhile is not None:
        meanwhile(lab)
    operation = lab.wait_final(id)
    assert (operation["status"], operation["runs"], operation["attempt"]) == ("succeeded", 1, 1)
    assert lab.effects.count(ref) == 1


def restart_broker(lab):
    lab.stack.servers.valkey.kill()
    lab.stack.servers.valkey.restart()


class TestMessage:
    def test_carries_a_due_time(self, lab):
        """Part 4, for each way in which a message comes to be sent: accepted, lost, due again, taken back."""
        lab.kill_workers()
        user = lab.new_user()
        ids = [user.ask("probe/sleep", {"ref": uuid.uuid4().hex, "seconds": 0}) for _ in range(3)]
        accepted = lab.messages("probe.sleep")
        lab.flush_broker()
        lab.database.execute(DUE_AGAIN, [ids[1]])
        lab.database.execute(ABANDONED, [ids[2]])

        eventually(lambda: lab.queue_length("probe.sleep") == len(ids), what="three messages of the relay's")

        messages = accepted + lab.messages("probe.sleep")
        assert sorted(
            id for message in messages for id in ids if id in message["headers"]["argsrepr"]
        ) == sorted(ids * 2)
        for message in messages:
            assert not TIMES & {*message["headers"], *message["properties"]}
        assert [move[2] for move in lab.history(ids[2])] == ["accepted", "worker_lost"]
