"""Ten thousand operations later, a worker and its relay hold what they held after the first ones."""

import psutil
import pytest

from tests.faults.lab import PROBES, eventually

pytestmark = [pytest.mark.process, pytest.mark.embedded]

WARM = (
    6_000  # what is shared after a fork is copied, and caches and the allocator's arenas are filled by then
)
MANY = 10_000
MEGABYTE = 1_048_576
# A leak of a quarter of a kilobyte an operation would be 2.5 MB; half a megabyte is noise.
STEADY_BYTES = 2 * MEGABYTE
FILL = """
    WITH made AS (
        INSERT INTO operations_operation
            (id, job_type, schema_version, owner_id, source, status, reason, step, runs, attempt,
             max_attempts, interruptions, waits, replays, run_at, deadline_at, resource, waiting_for,
             idempotency_key, request_id, correlation_id, claimed_by, version, depth)
        SELECT gen_random_uuid(), 'probe.nothing', 1, %s, 'api', 'queued', 'accepted', '', 0, 0,
            3, 0, 0, 0, now(), now() + interval '1 hour', '', '', '', '', '', '', 1, 0
        FROM generate_series(1, %s) RETURNING id)
    INSERT INTO operations_operationdata (operation_id, payload) SELECT id, '{}' FROM made RETURNING 1"""
LEFT = "SELECT count(*) AS n FROM operations_operation WHERE status <> 'succeeded'"


@pytest.fixture(scope="module")
def lab(new_lab):
    env = {
        "EXTRA_APPS": "tests.probes,tests.probes.quiet",
        "WORKER_GROUP_PROBES": ",".join([*PROBES, "probe.nothing"]),
        "RELAY_BATCH": "200",
    }
    return new_lab("worker-inventory", "relay", env=env)


def work_off(lab, count):
    lab.rows(FILL, lab.new_user().id, count)
    eventually(lambda: lab.rows(LEFT)[0]["n"] == 0, within=60, what=f"{count} operations to be done")


def held(lab):
    """Give the bytes that each process has for itself, by name."""
    worker, relay = lab.worker, lab.stack.process("relay")
    processes = {"parent": psutil.Process(worker.pid), "relay": psutil.Process(relay.pid)}
    processes |= {f"child {child.pid}": child for child in worker.children()}
    return {name: process.memory_full_info().uss for name, process in processes.items()}


class TestMemory:
    def test_grows_with_what_was_done(self, lab):
        work_off(lab, WARM)
        warm = held(lab)

        work_off(lab, MANY)

        after = held(lab)
        grown = {name: after[name] - warm[name] for name in warm}
        print({name: f"{warm[name] / MEGABYTE:.1f} + {grown[name] / MEGABYTE:.2f} MB" for name in warm})  # noqa: T201
        assert after.keys() == warm.keys(), "a child was replaced, so nothing was measured"
        assert max(grown.values()) < STEADY_BYTES, grown
