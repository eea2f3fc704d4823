"""Who holds which connection: a child keeps none of its parent's, and threads leave none behind."""

import signal
import uuid

import pytest

from tests.faults.lab import eventually
from tests.faults.scenarios import worker_of

pytestmark = [pytest.mark.process, pytest.mark.embedded]

SLOTS = 2
SESSIONS = """
    SELECT count(*) AS n FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()"""


@pytest.fixture(scope="module")
def lab(new_lab):
    """Beats come four times in a run, and the worker reports all the time."""
    env = {"WORKER_SLOTS": str(SLOTS), "NODE_PERIOD_SECONDS": "0.2", "HEARTBEAT_SECONDS": "0.5"}
    return new_lab("web", "worker-inventory", "relay", env=env)


def begin_everywhere(lab, seconds):
    """Have every child run something for so long, and give the ids."""
    user, refs = lab.new_user(), [uuid.uuid4().hex for _ in range(SLOTS)]
    ids = [user.ask("probe/sleep", {"ref": ref, "seconds": seconds}) for ref in refs]
    for ref in refs:
        lab.wait_effects(ref)
    return ids


def consumers(lab):
    """Give the broker's numbers of the connections over which a worker has asked for messages."""
    with lab.broker as broker:
        return {client["id"] for client in broker.client_list() if client["cmd"] == "brpop"}


class TestChild:
    def test_keeps_the_connection_of_a_parent_that_was_killed(self, lab):
        """The broker would hand messages to the dead: a later child is forked from a connected parent."""
        lab.worker.kill(signal.SIGKILL, whom="children")
        eventually(lambda: len(lab.worker.children()) == SLOTS, what="new children")
        ids = begin_everywhere(lab, 10)
        worker = worker_of(lab, ids[0])
        asking = consumers(lab)
        assert asking

        worker.kill(signal.SIGKILL)

        eventually(lambda: not asking & consumers(lab), within=3, what="a broker that knows of the death")
        worker.wait()
        lab.start_again(worker)
        for id in ids:
            assert lab.wait_final(id)["status"] == "succeeded"


class TestThreads:
    def test_leave_connections_behind(self, lab):
        """A child has one, its heartbeat's thread another; reports have one while they need it."""
        for _ in range(3):
            for id in begin_everywhere(lab, 2):
                assert lab.wait_final(id)["runs"] == 1

        lab.stack.process("web").stop()
        eventually(lambda: lab.rows(SESSIONS)[0]["n"] <= 2 * SLOTS + 1, what="two a child, and the relay's")
        lab.stack.process("web").start()
