"""The database's clock is set while work is under way: no live lease is taken, and no dead one lasts."""

import time
import uuid

import pytest

from tests.faults.lab import LEASE_SECONDS, eventually
from tests.faults.scenarios import worker_of

pytestmark = [pytest.mark.process, pytest.mark.embedded]

PERIOD_SECONDS = 0.2  # the relay looks several times between two beats
RUN_SECONDS = 2.5 * LEASE_SECONDS
AHEAD_SECONDS = 3 * LEASE_SECONDS  # less than the hard limit, which is judged by the same clock
RECOVERY_SECONDS = LEASE_SECONDS + PERIOD_SECONDS + 2
# A clock that can be set, found by name before the true one.
CLOCK = """
    CREATE SCHEMA settable;
    CREATE TABLE settable.clock AS SELECT interval '0' AS ahead;
    CREATE FUNCTION settable.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
        AS 'SELECT pg_catalog.clock_timestamp() + ahead FROM settable.clock';
    CREATE FUNCTION settable.statement_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
        AS 'SELECT pg_catalog.statement_timestamp() + ahead FROM settable.clock';
    ALTER DATABASE "{name}" SET search_path = settable, pg_catalog, public"""


@pytest.fixture(scope="module")
def lab(new_lab):
    env = {"RELAY_PERIOD_SECONDS": str(PERIOD_SECONDS), "WORKER_SLOTS": "2"}
    lab = new_lab("web", "worker-inventory", "worker-inventory#2", "relay", env=env)
    lab.database.execute(CLOCK.format(name=lab.stack.name))
    for process in lab.stack.processes.values():
        process.restart()
    return lab


@pytest.fixture(autouse=True)
def a_true_clock(lab):
    yield
    set_clock(lab, 0)


def set_clock(lab, seconds):
    lab.database.execute("UPDATE settable.clock SET ahead = make_interval(secs => %s)", [seconds])


def begin(lab, *, seconds=RUN_SECONDS):
    """Begin a run that outlasts two leases, and give the operation's id once its first beat was heard."""
    ref = uuid.uuid4().hex
    id = lab.new_user().ask("probe/sleep", {"ref": ref, "seconds": seconds})
    claimed = lab.wait_for(id, "processing")
    eventually(lambda: lab.operation(id)["lease_expires_at"] > claimed["lease_expires_at"], what="a beat")
    return id, ref


class TestLiveLease:
    @pytest.mark.parametrize("step", [AHEAD_SECONDS, -3_600])
    def test_is_freed_when_the_clock_is_set(self, lab, step):
        runs = [begin(lab) for _ in range(4)]

        set_clock(lab, step)

        for id, ref in runs:
            operation = lab.wait_final(id)
            assert (operation["status"], operation["runs"]) == ("succeeded", 1)
            assert lab.effects.count(ref) == 1

    def test_is_not_believed_at_the_finish_before_it_is_renewed(self, lab):
        """Refused, it is run again; never beside itself."""
        id, ref = begin(lab, seconds=1.9)

        set_clock(lab, AHEAD_SECONDS)

        operation = lab.wait_final(id)
        assert operation["status"] == "succeeded"
        assert lab.effects.count(ref) == operation["runs"]
        assert operation["runs"] in (1, 2)


class TestDeadLease:
    @pytest.mark.parametrize("step", [AHEAD_SECONDS, -3_600, 0])
    def test_outlives_itself_when_the_clock_is_set(self, lab, step):
        id, ref = begin(lab)
        worker = worker_of(lab, id)

        set_clock(lab, step)
        worker.kill()
        killed_at = time.monotonic()
        lab.wait_for(id, "processing", run=2)
        took = time.monotonic() - killed_at
        lab.start_again(worker)

        assert took < RECOVERY_SECONDS
        moves = [(move["to_status"], move["reason"], move["actor"]) for move in lab.moves(id)]
        assert ("retry_scheduled", "worker_lost", "relay") in moves
        assert lab.wait_final(id)["status"] == "succeeded"
        assert lab.effects.count(ref) == 2
