"""A healthy lease is not stolen, a lease that is over is not outlived, and one clock judges both."""

import time
import uuid
from datetime import timedelta

import pytest

from tests.faults.lab import LEASE_SECONDS, RECOVERY_SECONDS, RELAY_PERIOD_SECONDS, eventually
from tests.faults.scenarios import worker_of
from tests.faults.stubborn import STUBBORN, ask, begin

pytestmark = [pytest.mark.process, pytest.mark.embedded]

BUSY_SECONDS = 2.5 * LEASE_SECONDS
LONG_SECONDS = 1.5 * LEASE_SECONDS
WRONG_CLOCKS = {
    **STUBBORN,
    "EXTRA_APPS": f"{STUBBORN['EXTRA_APPS']},tests.probes.stubborn.clocks.ClocksWrong",
    "WORKER_SLOTS": "2",
}
CUT_BEATS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND query LIKE '%%SET lease_expires_at%%'
        AND pid <> pg_backend_pid()"""
GIVE_UP = """
    UPDATE operations_operation SET deadline_at = clock_timestamp(), max_attempts = GREATEST(attempt, 1)
    WHERE id = %s RETURNING id"""


@pytest.fixture(scope="module")
def lab(new_lab):
    """Two workers, a relay and a web server, no two of whose clocks agree, or are right."""
    return new_lab("web", "worker-inventory", "worker-inventory#2", "relay", env=WRONG_CLOCKS)


def give_up(lab, stay):
    """Let nothing of it run beside the next test."""
    lab.rows(GIVE_UP, stay.id)


def abandon(lab):
    """Make an operation whose worker is gone, and its lease over."""
    stay = ask(lab, "sleep", seconds=0)
    lab.rows(
        """UPDATE operations_operation SET status = 'processing', reason = '', attempt = 1, runs = 1,
            claim_token = gen_random_uuid(), claimed_by = 'nobody', started_at = clock_timestamp(),
            lease_expires_at = clock_timestamp()
        WHERE id = %s RETURNING id""",
        stay.id,
    )
    return stay.id


class TestLease:
    """C12."""

    def test_is_stolen_from_a_job_that_computes(self, lab):
        """C12 parts 1 and 3: in pure Python, which leaves the heartbeat little; and a run on each worker."""
        stays = [begin(lab, "python", seconds=BUSY_SECONDS)]
        while len({worker_of(lab, stay.id).name for stay in stays}) < 2:
            stays.append(begin(lab, "sleep", seconds=BUSY_SECONDS))

        for stay in stays:
            operation = lab.wait_final(stay.id)
            assert (operation["status"], operation["runs"], operation["attempt"]) == ("succeeded", 1, 1)
            assert lab.effects.count(stay.ref) == 1

    def test_is_dated_by_the_clock_of_a_process(self, lab):
        """C12 part 3: the row's times are the database's, and a retry comes when it is due."""
        id = lab.new_user().ask("probe/fail", {"ref": uuid.uuid4().hex, "kind": "timeout", "times": 1})

        operation = lab.wait_final(id)

        claimed, failed, again = [move["at"] for move in lab.moves(id)[1:4]]
        assert timedelta(seconds=1) <= again - failed < timedelta(seconds=RECOVERY_SECONDS)
        now = lab.rows("SELECT clock_timestamp() AS now")[0]["now"]
        assert (
            now - timedelta(seconds=30) < operation["created_at"] < claimed < operation["finished_at"] < now
        )

    def test_is_not_renewed_once_its_connection_was_cut(self, lab):
        """Every beat's connection is, as soon as it has beaten; the run's own is not."""
        stay = begin(lab, "sleep", seconds=LONG_SECONDS)
        cuts = 0

        while lab.operation(stay.id)["status"] == "processing":
            cuts += len(lab.rows(CUT_BEATS))
            time.sleep(0.1)

        assert cuts >= LONG_SECONDS / 2
        operation = lab.wait_final(stay.id)
        assert (operation["status"], operation["runs"], operation["attempt"]) == ("succeeded", 1, 1)

    def test_is_outlived_by_a_run_that_cannot_renew_it(self, lab):
        """One in C code that keeps the interpreter for itself, and one whose heartbeat has died alone."""
        stays = [begin(lab, how, seconds=4 * LEASE_SECONDS) for how in ("native", "unheard")]
        for stay in stays:
            lab.wait_effects(stay.ref, 2)
            give_up(lab, stay)

        for stay in stays:
            claimed, lost, taken = lab.moves(stay.id)[1:4]
            assert (lost["reason"], lost["attempt"]) == ("worker_lost", 1)
            assert (taken["run"], taken["attempt"]) == (2, 2)
            assert (taken["at"] - claimed["at"]).total_seconds() < RECOVERY_SECONDS
            assert lab.wait_final(stay.id)["reason"] == "worker_lost"
            assert lab.effects.count(f"{stay.ref}-left") == 0, "it went on beside its successor"
        assert any("worker.child_overran_its_lease" in worker.output() for worker in lab.workers)


class TestChild:
    """A child dies, in one way or another, and its parent sees it."""

    @pytest.mark.parametrize("how", ["killed", "segfault", "left"])
    def test_takes_its_operation_along_until_the_lease_ends(self, lab, how):
        stay = begin(lab, how, seconds=0)
        lab.wait_effects(stay.ref, 2)
        give_up(lab, stay)

        claimed, lost, taken = lab.moves(stay.id)[1:4]
        assert (lost["reason"], lost["attempt"]) == ("worker_lost", 1)
        assert lost["actor"] == claimed["actor"], "the relay had to do it"
        assert (taken["at"] - claimed["at"]).total_seconds() < LEASE_SECONDS * 0.75
        assert lab.wait_final(stay.id)["reason"] == "worker_lost"


class TestFinish:
    """The last of this file: its worker pauses between the proof and the commit."""

    def test_loses_the_lease_that_nobody_can_renew_meanwhile(self, lab):
        """It holds the row, so no beat gets there. Nor does the relay, which does the rest nevertheless."""
        lab.stack.process("worker-inventory#2").stop()
        lab.crash_at("worker-inventory", f"finish.before_commit=pause={BUSY_SECONDS}")
        stay = begin(lab, "sleep", seconds=0)
        lost = abandon(lab)
        time.sleep(LEASE_SECONDS + RELAY_PERIOD_SECONDS)

        eventually(
            lambda: ("processing", "retry_scheduled", "worker_lost") in lab.history(lost), what="the relay"
        )
        assert lab.operation(stay.id)["status"] == "processing"
        operation = lab.wait_final(stay.id)
        assert (operation["status"], operation["runs"], operation["attempt"]) == ("succeeded", 1, 1)
