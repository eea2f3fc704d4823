"""C09: messages with a due time flood a worker, and short work waits behind long."""

import json
import time
import uuid

import psutil
import pytest

from tests.faults.envelopes import QUEUE, body, envelope
from tests.faults.lab import eventually

pytestmark = [pytest.mark.process, pytest.mark.embedded]

MANY = 5_000
MEGABYTE = 1_048_576
SCHEDULED = """
    WITH made AS (
        INSERT INTO operations_operation
            (id, job_type, schema_version, owner_id, source, status, reason, step, runs, attempt,
             max_attempts, interruptions, waits, replays, run_at, deadline_at, resource, waiting_for,
             idempotency_key, request_id, correlation_id, claimed_by, version, depth)
        SELECT gen_random_uuid(), 'probe.effect', 1, %s, 'api', 'retry_scheduled', 'timeout', '', 1, 1,
            5, 0, 0, 0, now() + interval '10 minutes', now() + interval '1 hour', '', '', '', '', '', '', 1, 0
        FROM generate_series(1, %s) RETURNING id)
    INSERT INTO operations_operationdata (operation_id, payload) SELECT id, %s FROM made RETURNING 1"""


@pytest.fixture(scope="module")
def lab(new_lab):
    env = {"WORKER_SLOTS": "1", "BROKER_KEEPS_TAKEN": "true"}
    return new_lab("web", "worker-inventory", "worker-inventory#2", "relay", env=env)


def memory(lab):
    """Give the bytes that all workers and their children hold."""
    every = [
        process for worker in lab.workers for process in [psutil.Process(worker.pid), *worker.children()]
    ]
    return sum(process.memory_info().rss for process in every)


class TestScheduled:
    def test_floods_the_workers_long_before_it_is_due(self, lab):
        """C09 part 1."""
        ref, before = uuid.uuid4().hex, memory(lab)
        lab.rows(SCHEDULED, lab.new_user().id, MANY, json.dumps({"ref": ref}))

        operation = lab.new_user().ask("probe/effect", {"ref": uuid.uuid4().hex})

        assert lab.wait_final(operation)["status"] == "succeeded"
        time.sleep(3)  # three rounds of the relay
        assert memory(lab) - before < 50 * MEGABYTE
        assert lab.unacknowledged() == lab.queue_length(QUEUE) == lab.effects.count(ref) == 0

    def test_floods_them_by_messages_that_somebody_else_dated(self, lab):
        """C09 part 2."""
        before = memory(lab)
        dated = envelope(body(str(uuid.uuid4())), eta="2036-01-01T00:00:00+00:00")

        with lab.broker as broker:
            for _ in range(10):
                broker.lpush(f"{lab.stack.name}:{QUEUE}", *([dated] * (MANY // 10)))

        eventually(lambda: lab.queue_length(QUEUE) == 0, what="the end of the queue")
        eventually(lambda: lab.unacknowledged() == 0, what="all acknowledged")
        assert memory(lab) - before < 50 * MEGABYTE


@pytest.mark.broker
class TestShort:
    def test_waits_behind_long_while_another_worker_idles(self, lab):
        """C09 part 3."""
        user, ref = lab.new_user(), uuid.uuid4().hex
        long = user.ask("probe/sleep", {"ref": ref, "seconds": 20})
        lab.wait_effects(ref)
        began = time.monotonic()

        short = [user.ask("probe/effect", {"ref": uuid.uuid4().hex}) for _ in range(4)]

        for id in short:
            assert lab.wait_final(id)["status"] == "succeeded"
        assert time.monotonic() - began < 10
        assert lab.operation(long)["status"] == "processing"
