"""A worker that lives and is deaf ends by itself, its work handed back, and another takes what waits."""

import time
import uuid

import pytest
from celery import Celery

from deploy.local.supervisor import Supervisor
from tests.faults.lab import LAB, eventually

pytestmark = [pytest.mark.process, pytest.mark.embedded]

QUEUE = "probe.effect"
STUCK_SECONDS = 3.0
GRACE_SECONDS = 4.0
MARGIN_SECONDS = 3.0  # on two busy cores
NOTICED_SECONDS = 2 * STUCK_SECONDS + MARGIN_SECONDS  # six looks, the first of which may have found nothing
WATCHED = {
    "EXTRA_APPS": "tests.probes,tests.probes.deaf",
    "STUCK_AFTER_SECONDS": str(STUCK_SECONDS),
    "GRACE_SECONDS": str(GRACE_SECONDS),
    "GRACE_MARGIN_SECONDS": "1",
}
UNWATCHED = {**WATCHED, "STUCK_AFTER_SECONDS": "0"}


@pytest.fixture(scope="module")
def lab(new_lab):
    return new_lab("web", "worker-inventory", "relay", env=WATCHED)


@pytest.fixture
def worker(lab):
    """The worker; one that has ended is started again."""
    yield lab.worker
    if not lab.worker.is_alive():
        lab.start_again(lab.worker)


def order(lab, command, **arguments):
    """Send a remote command to the workers of a lab, as Flower does."""
    app = Celery(broker=f"redis+socket://{lab.stack.servers.valkey.socket}?virtual_host=0")
    app.conf.broker_transport_options = {"global_keyprefix": f"{lab.stack.name}:"}
    with app.connection_for_write() as connection:
        app.control.broadcast(command, arguments=arguments, connection=connection)
    app.close()


def make_deaf(lab):
    """Take the subscription to one queue away: nothing raises, and the worker serves the others."""
    order(lab, "cancel_consumer", queue=QUEUE)
    eventually(lambda: is_unheard(lab), what="a message that nobody takes")


def is_unheard(lab):
    """Say whether a message waits that a worker with nothing to do would have taken."""
    if not lab.queue_length(QUEUE):
        lab.new_user().ask("probe/effect", {"ref": uuid.uuid4().hex})
    time.sleep(0.5)
    return lab.queue_length(QUEUE) > 0


class TestWatch:
    def test_ends_a_worker_that_takes_nothing(self, lab, worker):
        make_deaf(lab)
        id = lab.new_user().ask("probe/effect", {"ref": uuid.uuid4().hex})

        eventually(lambda: not worker.is_alive(), within=NOTICED_SECONDS, what="the end of a deaf worker")

        assert worker.exit_code() == 1
        assert "worker.stuck" in worker.output()
        assert "worker.stuck_for_good" not in worker.output()
        supervisor = Supervisor(lab.stack)
        eventually(supervisor.run_once, what="its supervisor to start it again")
        assert lab.wait_final(id)["runs"] == 1

    def test_hands_back_what_its_children_are_at(self, lab, worker):
        ref = uuid.uuid4().hex
        long = lab.new_user().ask("probe/sleep", {"ref": ref, "seconds": 18})
        lab.wait_effects(ref)
        make_deaf(lab)

        eventually(
            lambda: not worker.is_alive(),
            within=NOTICED_SECONDS + GRACE_SECONDS,
            what="the end of a deaf worker",
        )

        assert worker.exit_code() == 1
        row = lab.operation(long)
        assert (row["status"], row["reason"], row["attempt"]) == ("queued", "interrupted", 0)
        lab.rows("UPDATE operations_operation SET run_at = now() + '1 hour' WHERE id = %s RETURNING id", long)

    def test_ends_a_worker_whose_event_loop_hangs(self, lab, worker):
        """Nobody hears that it should end, so its thread does it; its children end with it."""
        children = worker.children()
        order(lab, "hang", seconds=60.0)
        time.sleep(0.5)
        id = lab.new_user().ask("probe/effect", {"ref": uuid.uuid4().hex})

        eventually(
            lambda: not worker.is_alive(),
            within=NOTICED_SECONDS + GRACE_SECONDS,
            what="the end of a worker that hangs",
        )

        assert worker.exit_code() == 1
        assert "worker.stuck_for_good" in worker.output()
        eventually(lambda: not any(child.is_running() for child in children), what="the end of its children")
        lab.start_again(worker)
        assert lab.wait_final(id)["runs"] == 1

    def test_leaves_a_worker_alone_that_has_no_time(self, lab, worker):
        pid, refs = worker.pid, [uuid.uuid4().hex for _ in range(2)]
        busy = [lab.new_user().ask("probe/sleep", {"ref": ref, "seconds": 9}) for ref in refs]
        for ref in refs:
            lab.wait_effects(ref)

        waiting = [lab.new_user().ask("probe/effect", {"ref": uuid.uuid4().hex}) for _ in range(5)]

        assert [lab.wait_final(id)["runs"] for id in [*busy, *waiting]] == [1] * 7
        assert (worker.pid, worker.is_alive()) == (pid, True)

    def test_off_lets_messages_wait(self, new_lab):
        """The test of the tests: nothing else ends a deaf worker."""
        lab = new_lab("web", "worker-inventory", "relay", env=UNWATCHED)
        make_deaf(lab)
        id = lab.new_user().ask("probe/effect", {"ref": uuid.uuid4().hex})

        time.sleep(NOTICED_SECONDS)

        assert lab.worker.is_alive()
        assert lab.operation(id)["status"] == "queued"
        assert lab.queue_length(QUEUE) > 0
        assert float(LAB["LEASE_SECONDS"]) + float(LAB["RELAY_PERIOD_SECONDS"]) < NOTICED_SECONDS
