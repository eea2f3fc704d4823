"""A run's time is up. The soft limit stops it, whatever it catches; the hard limit ends its process."""

import uuid

import psutil
import pytest

from tests.faults.lab import eventually
from tests.faults.stubborn import STUBBORN, ask, begin

pytestmark = [pytest.mark.process, pytest.mark.embedded]

SOFT_SECONDS, HARD_SECONDS = 1.5, 3.0  # of stubborn.short
CLOSED_SECONDS = 3.0  # after a limit: a look, a move, and a busy machine
LOCK_TTL_SECONDS = 4.0  # the lab's lease
FOR_EVER = 15
ASLEEP = "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%%' AND state = 'active'"


@pytest.fixture(scope="module")
def lab(new_lab):
    return new_lab("web", "worker-inventory", "relay", env={**STUBBORN, "WORKER_SLOTS": "2"})


def wait_until_closed(lab, stay):
    """Wait until the first run has left `processing`, and give that move and how long it ran."""
    eventually(lambda: len(lab.moves(stay.id)) >= 3, what="the end of the first run")
    claimed, closed = lab.moves(stay.id)[1:3]
    return closed, (closed["at"] - claimed["at"]).total_seconds()


def give_up(lab, stay):
    """Let nothing of it run beside the next test."""
    lab.rows("UPDATE operations_operation SET deadline_at = now() WHERE id = %s RETURNING id", stay.id)


class TestSoftLimit:
    """C10."""

    def test_is_swallowed_by_a_broad_except(self, lab):
        """C10 part 1: around ten seconds of work."""
        ref = uuid.uuid4().hex
        id = lab.new_user().ask("probe/swallow", {"ref": ref, "seconds": 10})
        lab.rows("UPDATE operations_operation SET max_attempts = 1 WHERE id = %s RETURNING id", id)

        dead = lab.wait_final(id)

        assert (dead["status"], dead["reason"]) == ("failed_permanent", "timeout_exhausted")
        assert (dead["attempt"], lab.effects.count(ref)) == (1, 1)
        assert (dead["finished_at"] - dead["started_at"]).total_seconds() < 5, "the hard limit had to end it"

    @pytest.mark.parametrize("where", ["call", "handler"])
    def test_breaks_the_connection_in_a_statement(self, lab, where):
        stay = begin(lab, "statement", seconds=FOR_EVER, job="short", where=where)

        closed, seconds = wait_until_closed(lab, stay)

        assert SOFT_SECONDS - 0.5 < seconds < HARD_SECONDS
        assert (closed["to_status"], closed["reason"], closed["attempt"]) == ("retry_scheduled", "timeout", 1)
        eventually(lambda: not lab.rows(ASLEEP), what="the end of the statement")
        give_up(lab, stay)


class TestHardLimit:
    @pytest.mark.parametrize("how", ["deaf", "native"])
    def test_leaves_the_row_processing(self, lab, how):
        """C10 part 2: a busy loop that catches everything, and C code that hears nothing."""
        stay = begin(lab, how, seconds=FOR_EVER, job="short")
        child = int(lab.operation(stay.id)["claimed_by"].rpartition("/")[2])
        waiting = ask(lab, "sleep", seconds=0, job="short", thing=stay.ref)

        closed, seconds = wait_until_closed(lab, stay)
        give_up(lab, stay)

        assert HARD_SECONDS - 0.5 < seconds < HARD_SECONDS + CLOSED_SECONDS
        assert (closed["to_status"], closed["reason"], closed["attempt"]) == ("retry_scheduled", "timeout", 1)
        assert lab.operation(stay.id)["error"]["category"] == "timeout"
        assert lab.effects.count(f"{stay.ref}-left") == 0, "it went on behind the limit"
        assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
        assert lab.wait_final(waiting.id)["status"] == "succeeded"
        [began] = [move["at"] for move in lab.moves(waiting.id) if move["to_status"] == "processing"]
        assert (began - closed["at"]).total_seconds() < LOCK_TTL_SECONDS + 2


class TestAfterTheCommit:
    """The last of this file: its worker pauses there."""

    def test_is_cut_off_by_the_soft_limit(self, lab):
        """The limit comes between the commit and what follows it."""
        lab.crash_at("worker-inventory", "after_commit.begin=pause=1.3")
        stay = begin(lab, "sleep", seconds=0.5, job="short")

        operation = lab.wait_final(stay.id)

        assert (operation["status"], operation["attempt"]) == ("succeeded", 1)
        eventually(
            lambda: not lab.rows("SELECT id FROM operations_aftercommit"), what="what follows a commit"
        )
        eventually(lambda: "operation.succeeded" in lab.worker.output(), what="the run to end by itself")
        assert "SoftLimitPassed" not in lab.worker.output()
