"""C07: what lies in a queue was written by other code, or by nobody's. No message ends or stops a worker."""

import uuid

import psycopg
import pytest

from tests.faults.envelopes import BAD, QUEUE, body, envelope
from tests.faults.lab import eventually

pytestmark = [pytest.mark.process, pytest.mark.embedded]

SOON_SECONDS = 5.0  # until the next job is done


@pytest.fixture(scope="module")
def lab(new_lab):
    return new_lab("web", "worker-inventory", "relay", env={"WORKER_SLOTS": "1"})


def put(lab, *items, queue=QUEUE):
    """Put items into a queue as they are, the first to be delivered first."""
    with lab.broker as broker:
        for item in items:
            broker.lpush(f"{lab.stack.name}:{queue}", item)


def found(lab):
    """Give the evidence there is: for each fault, how many messages."""
    rows = lab.rows("SELECT fault, sum(times)::int AS times FROM operations_badmessage GROUP BY fault")
    return {row["fault"]: row["times"] for row in rows}


def expected(names):
    faults = [BAD[name][1] for name in names]
    return {fault: faults.count(fault) for fault in faults}


class TestWorker:
    @pytest.mark.parametrize("name", BAD)
    def test_is_ended_by_a_message_it_cannot_read(self, lab, name):
        """C07 part 1."""
        lab.rows("DELETE FROM operations_badmessage RETURNING id")
        processes = (lab.worker.pid, lab.worker.children())

        put(lab, BAD[name][0])
        operation = lab.new_user().ask("probe/effect", {"ref": uuid.uuid4().hex})

        assert lab.wait_final(operation, within=SOON_SECONDS)["status"] == "succeeded"
        eventually(lambda: found(lab) == expected([name]), what=f"evidence of {name}", within=SOON_SECONDS)
        assert (lab.worker.pid, lab.worker.children()) == processes
        assert lab.unacknowledged() == lab.queue_length(QUEUE) == 0

    def test_is_ended_by_what_already_waits_when_it_starts(self, lab):
        """C07 part 1, and again after a restart: nothing comes back."""
        lab.rows("DELETE FROM operations_badmessage RETURNING id")
        lab.worker.stop()
        put(lab, *(message for message, _ in BAD.values()))
        operation = lab.new_user().ask("probe/effect", {"ref": uuid.uuid4().hex})

        lab.worker.start()
        pid = lab.worker.pid

        assert lab.wait_final(operation)["status"] == "succeeded"
        eventually(lambda: found(lab) == expected(BAD), what="all evidence")
        assert (lab.worker.is_alive(), lab.worker.pid) == (True, pid)
        assert lab.worker.stop() == 0
        lab.worker.start()
        assert lab.unacknowledged() == lab.queue_length(QUEUE) == 0
        assert found(lab) == expected(BAD)

    def test_obeys_what_a_message_orders_beside_its_hint(self, lab):
        """A due time would hold a slot of the worker for hours, a time limit would outlast the lease."""
        ref = uuid.uuid4().hex
        lab.worker.stop()
        operation = lab.new_user().ask("probe/effect", {"ref": ref})
        with lab.broker as broker:
            broker.delete(f"{lab.stack.name}:{QUEUE}")
        lab.rows("UPDATE operations_operation SET published_at = now() + interval '1 hour' RETURNING id")
        orders = {"eta": "2036-01-01T00:00:00+00:00", "expires": "2001-01-01T00:00:00+00:00"}
        orders |= {
            "timelimit": [0.001, 0.001],
            "callbacks": [1],
            "retries": "x",
            "stamps": 7,
            "extra": {"a": 1},
        }

        put(lab, envelope(body(operation), **orders))
        lab.worker.start()

        done = lab.wait_final(operation, within=SOON_SECONDS)
        assert (done["status"], done["runs"], lab.effects.count(ref)) == ("succeeded", 1, 1)

    @pytest.mark.parametrize(
        "junk", ["hello", "[1]", "7", "{}", '{"properties": {}, "body": 7, "headers": [1]}']
    )
    def test_is_ended_by_junk_on_the_line_by_which_workers_are_inspected(self, lab, junk):
        pid = lab.worker.pid

        with lab.broker as broker:
            assert broker.publish(f"{lab.stack.name}:/0.celery.pidbox", junk) > 0
        operation = lab.new_user().ask("probe/effect", {"ref": uuid.uuid4().hex})

        assert lab.wait_final(operation, within=SOON_SECONDS)["status"] == "succeeded"
        assert (lab.worker.is_alive(), lab.worker.pid) == (True, pid)


class TestEvidence:
    def test_is_lost_while_the_database_cannot_take_it(self, lab):
        """It waits in the worker; the message does not, and nor does the next job."""
        pid, before = lab.worker.pid, lab.counted("ops_bad_messages_total", fault="not_json")
        lab.rows("DELETE FROM operations_badmessage RETURNING id")
        with psycopg.connect(lab.stack.env["DATABASE_URL"]) as rival:
            rival.execute("LOCK TABLE operations_badmessage")
            put(lab, BAD["a body that is no JSON"][0], BAD["a body that is no text"][0])
            operation = lab.new_user().ask("probe/effect", {"ref": uuid.uuid4().hex})

            assert lab.wait_final(operation, within=SOON_SECONDS)["status"] == "succeeded"
            eventually(lambda: "message.evidence_waits" in lab.worker.output(), what="a try that failed")
            assert lab.queue_length(QUEUE) == 0
            rival.rollback()

        eventually(lambda: found(lab) == {"not_json": 2}, what="the evidence")
        assert lab.counted("ops_bad_messages_total", fault="not_json") == before + 2
        assert lab.worker.pid == pid

    def test_fills_the_table_with_copies_or_shows_what_was_secret(self, lab):
        lab.rows("DELETE FROM operations_badmessage RETURNING id")
        secret = envelope(b"hello", kwargsrepr="{'password': 'hunter2'}", x="hunter2")

        put(lab, secret, secret, secret)

        eventually(lambda: found(lab) == {"not_json": 3}, what="evidence of three")
        (row,) = lab.rows("SELECT * FROM operations_badmessage")
        assert (row["times"], row["queue"], row["size"], row["head"]) == (3, QUEUE, 5, "hello")
        assert row["envelope"]["headers"]["task"] == QUEUE
        assert "hunter2" not in f"{row} {lab.worker.output()}"
