"""RabbitMQ is killed, hangs, loses queues, refuses; lines to it go dead; it takes back what is held too long.

On a node of the module's own, behind a cable.
"""

import time
import uuid
import zlib

import pytest

from deploy.local.cable import Cable
from tests.faults.envelopes import QUEUE, body
from tests.faults.lab import LONG_SECONDS, eventually
from tests.rabbitmq import CONSUMER_TIMEOUT_SECONDS, Node, installed

pytestmark = [pytest.mark.process, pytest.mark.embedded, installed]

PATIENCE_SECONDS = 1.5  # of a client whose POST needs the broker for nothing
HEARTBEAT_SECONDS = 2
# Dead is what has been silent for two heartbeats, and it is looked at twice in each; then to come back, and
# to be given by the relay what was lost.
DEAD_SECONDS = 3 * HEARTBEAT_SECONDS + 8
GRACE_SECONDS = 12
# RabbitMQ 3.10 writes down the members of a quorum queue a while after it has declared it. Killed before, it
# comes back with a queue that never has a leader, and a worker that asks for that queue waits for ever.
SETTLED_SECONDS = 5


@pytest.fixture(scope="module")
def node():
    with Node() as node:
        yield node


@pytest.fixture(scope="module")
def cable(node):
    with Cable(node.port) as cable:
        yield cable


@pytest.fixture(scope="module")
def lab(new_lab, node, cable):
    env = {
        "BROKER_URL": Node.url_at(cable.port),
        "BROKER_HEARTBEAT_SECONDS": str(HEARTBEAT_SECONDS),
        "GRACE_SECONDS": str(GRACE_SECONDS),
        "GRACE_MARGIN_SECONDS": "3",
    }
    return new_lab("web", "worker-inventory", "worker-inventory#2", "relay", env=env)


@pytest.fixture
def workers(lab):
    """The workers' processes, which are to be the same afterwards."""
    before = [worker.pid for worker in lab.workers]
    yield before
    assert [worker.pid for worker in lab.workers if worker.is_alive()] == before


def ask_often(lab, count=6):
    """Ask for as many effects, and see that each is accepted soon. Gives the ids and their name."""
    user, ref = lab.new_user(), uuid.uuid4().hex
    answers = [user.post("probe/effect", {"ref": ref}) for _ in range(count)]
    assert [answer.status_code for answer in answers] == [202] * count
    assert max(answer.elapsed.total_seconds() for answer in answers) < PATIENCE_SECONDS
    return [answer.json()["operation_id"] for answer in answers], ref


def assert_done_once(lab, asked, *, within=LONG_SECONDS):
    ids, ref = asked
    for id in ids:
        operation = lab.wait_final(id, within=within)
        assert (operation["status"], operation["runs"]) == ("succeeded", 1)
    assert lab.effects.count(ref) == len(ids)


class TestQueues:
    def test_are_quorum_queues_and_none_is_for_due_times(self, lab, node):
        assert_done_once(lab, ask_often(lab))

        listed = [line.split("\t") for line in node.ctl("list_queues", "name", "type").splitlines()[1:]]

        ours = {name: kind for name, kind in listed if "pidbox" not in name}
        assert set(ours.values()) == {"quorum"}
        assert f"{lab.stack.name}:probe.effect" in ours
        assert not [name for name in ours if not name.startswith(f"{lab.stack.name}:")]

    def test_that_are_deleted_are_made_again_by_whoever_needs_them(self, lab, workers):
        ask_often(lab)

        lab.flush_broker()

        assert_done_once(lab, ask_often(lab), within=DEAD_SECONDS)


class TestRestart:
    @pytest.fixture(autouse=True)
    def settled(self, lab):
        """Let RabbitMQ write down what there is."""
        assert_done_once(lab, ask_often(lab))
        time.sleep(SETTLED_SECONDS)

    def test_loses_what_was_accepted_meanwhile(self, lab, node, workers):
        before = ask_often(lab)
        node.kill()
        try:
            meanwhile = ask_often(lab)
        finally:
            node.start()

        assert_done_once(lab, before)
        assert_done_once(lab, meanwhile)
        assert_done_once(lab, ask_often(lab))

    def test_repeats_a_run_that_outlives_it(self, lab, node, workers):
        ref = uuid.uuid4().hex
        id = lab.new_user().ask("probe/sleep", {"ref": ref, "seconds": 8})
        lab.wait_effects(ref)

        node.kill()
        node.start()

        operation = lab.wait_final(id)
        assert (operation["status"], operation["runs"], lab.effects.count(ref)) == ("succeeded", 1, 1)


class TestHang:
    def test_makes_a_client_wait(self, lab, node, workers):
        assert_done_once(lab, ask_often(lab))  # every web process has a line that is about to hang
        node.pause()
        try:
            asked = ask_often(lab)
        finally:
            node.resume()

        assert_done_once(lab, asked)

    def test_keeps_a_worker_from_its_end(self, lab, cable):
        worker = lab.workers[0]
        cable.hang()
        try:
            assert worker.stop(GRACE_SECONDS) == 0
        finally:
            cable.mend()
            worker.start()

        assert_done_once(lab, ask_often(lab))


class TestHalfOpenLine:
    def test_is_waited_on_for_ever(self, lab, cable, workers):
        """All the lines of all processes; nobody is told, and new ones are fine."""
        assert_done_once(lab, ask_often(lab))

        cable.go_dead()

        assert_done_once(lab, ask_often(lab), within=DEAD_SECONDS)
        assert_done_once(lab, ask_often(lab), within=DEAD_SECONDS)

    def test_keeps_the_next_worker_from_starting(self, lab, cable):
        """The broker believes for a while that the one that was lost is there."""
        worker = lab.workers[0]
        cable.go_dead()
        worker.kill(whom="group")
        worker.wait()

        worker.start()

        assert_done_once(lab, ask_often(lab), within=DEAD_SECONDS)


class TestRefusal:
    def test_of_a_queue_that_is_full_is_a_failed_request(self, lab, node):
        lab.kill_workers()
        node.ctl(
            "set_policy", "full", f"^{lab.stack.name}:", '{"max-length": 1, "overflow": "reject-publish"}'
        )
        try:
            asked = [ask_often(lab)]

            def is_refused():  # at the first try after the pause that an earlier test may have left
                asked.append(ask_often(lab))
                return '"error": "MessageNacked"' in lab.stack.process("web").output()

            eventually(is_refused, what="a message that is refused", within=10.0)
        finally:
            node.ctl("clear_policy", "full")
            for worker in lab.workers:
                worker.start()

        for each in asked:
            assert_done_once(lab, each)

    def test_of_a_broker_without_memory_makes_a_client_wait(self, lab, node):
        node.ctl("set_vm_memory_high_watermark", "absolute", "1")
        try:
            asked = ask_often(lab)
        finally:
            node.ctl("set_vm_memory_high_watermark", "0.4")

        assert_done_once(lab, asked)


class TestConsumerTimeout:
    def test_ends_a_worker_or_repeats_its_run(self, lab, workers):
        ref = uuid.uuid4().hex
        id = lab.new_user().ask("probe/sleep", {"ref": ref, "seconds": 2.5 * CONSUMER_TIMEOUT_SECONDS})

        operation = lab.wait_final(id)

        assert (operation["status"], operation["runs"], lab.effects.count(ref)) == ("succeeded", 1, 1)
        logs = "".join(worker.output() for worker in lab.workers)
        assert "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out" in logs
        assert "Unrecoverable error" not in logs  # of a worker that is about to end
        assert_done_once(lab, ask_often(lab), within=DEAD_SECONDS)


GOOD = {"content_type": "application/json", "content_encoding": "utf-8"}
HEADERS = {"task": QUEUE, "id": "an-id"}
BAD = {
    "no properties": (b"hello", {}, "wrong_content_type"),
    "no headers": (body("1"), GOOD, "no_task"),
    "a task that is a list": (
        body("1"),
        {**GOOD, "application_headers": {"task": [1], "id": "1"}},
        "no_task",
    ),
    "no id": (body("1"), {**GOOD, "application_headers": {"task": QUEUE}}, "no_id"),
    "no JSON": (b"hello", {**GOOD, "application_headers": HEADERS}, "not_json"),
    "ten megabytes": (b"x" * 10_000_000, {**GOOD, "application_headers": HEADERS}, "too_large"),
    "a bomb": (
        zlib.compress(bytes(10_000_000), 9),
        {**GOOD, "application_headers": {**HEADERS, "compression": "application/x-gzip"}},
        "compressed",
    ),
    "a pickle": (b"\x80\x04N.", {"content_type": "application/x-python-serialize"}, "wrong_content_type"),
    "an unknown task": (
        body("1"),
        {**GOOD, "application_headers": {**HEADERS, "task": "no.such"}},
        "unknown_task",
    ),
}


class TestBadMessage:
    def test_ends_a_worker_or_comes_back(self, lab, workers):
        for raw, properties, _ in BAD.values():
            lab.queues.put(QUEUE, raw, **properties)

        def faults():
            rows = lab.rows(
                "SELECT fault, queue, sum(times)::int AS n FROM operations_badmessage GROUP BY 1, 2"
            )
            return sorted(row["fault"] for row in rows for _ in range(row["n"]) if row["queue"] == QUEUE)

        eventually(lambda: faults() == sorted(fault for _, _, fault in BAD.values()), what="evidence of each")
        assert_done_once(lab, ask_often(lab))
        assert lab.queue_length(QUEUE) == 0
