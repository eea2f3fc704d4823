"""What is done outside, in real processes: once, whatever becomes of the worker that did it."""

import uuid

import pytest

from tests.faults.lab import PROBES, eventually
from tests.probes.marks import TABLE

pytestmark = [pytest.mark.process, pytest.mark.embedded]

WORKER = "worker-inventory"
PROVEN_BY_KEY = {"EXTRA_APPS": "tests.probes,tests.probes.marks"}


@pytest.fixture(scope="module")
def lab(new_lab):
    groups = {"WORKER_GROUP_PROBES": ",".join([*PROBES, "probe.life"])}
    lab = new_lab("web", WORKER, "relay", env={**PROVEN_BY_KEY, **groups})
    lab.database.execute(TABLE)
    return lab


@pytest.fixture
def live(lab):
    """Give a function that asks for a life and gives its name and its operation."""
    user = lab.new_user()

    def ask(how):
        ref = uuid.uuid4().hex
        return ref, user.ask("probe/life", {"ref": ref, "how": how, "resource": ""})

    return ask


class TestAnswerLostWithItsWorker:
    def test_is_looked_up_and_not_repeated(self, lab, live):
        lab.crash_at(WORKER, "effect.answered=kill@1")

        ref, id = live("buy")
        operation = lab.wait_final(id)

        assert operation["status"] == "succeeded"
        assert lab.effects.count(ref) == 1
        assert (operation["attempt"], operation["lookups"]) == (1, 1)

    def test_is_parked_where_nobody_can_be_asked(self, lab, live):
        lab.crash_at(WORKER, "effect.answered=kill@1")

        ref, id = live("post")
        operation = lab.wait_final(id)

        assert (operation["status"], operation["reason"]) == ("failed_permanent", "outcome_unknown")
        assert lab.effects.count(ref) == 1


class TestTransactionThatFailsAfterTheEffect:
    def test_repeats_nothing_outside(self, lab, live):
        lab.crash_at(WORKER, "finish.before_commit=raise@1")

        ref, id = live("buy")
        operation = lab.wait_final(id)

        calls = lab.effects.calls(ref)
        assert operation["status"] == "failed_permanent"  # what a test raises is a bug to the run
        assert [call.key for call in calls] == [f"{id}:paid:g1"]

    def test_gives_a_provider_without_look_up_one_key(self, lab, live):
        """A job that calls by itself, without an effect: both calls have the key of the operation."""
        lab.crash_at(WORKER, "call.answered=kill@1")

        ref, id = live("plain")
        lab.wait_final(id)

        calls = lab.effects.calls(ref)
        assert len(calls) > 1
        assert len({call.key for call in calls}) == 1


class TestBatch:
    def test_goes_on_behind_what_is_done(self, lab, live):
        lab.crash_at(WORKER, "")

        ref, id = live("batch")
        operation = lab.wait_final(id)

        assert (operation["status"], operation["runs"]) == ("succeeded", 2)
        assert [lab.effects.count(f"{ref}-{item}") for item in range(1, 11)] == [1] * 10


class TestStoreThatTakesNoWrites:
    def test_repeats_no_effect(self, lab, live):
        """Redis turns read-only while a run is between its effect and its finish."""
        lab.crash_at(WORKER, "effect.concluded=pause=1.5")
        ref, id = live("buy")
        eventually(lambda: lab.effects.count(ref), what="the effect")
        with lab.broker as broker:
            broker.execute_command("REPLICAOF", "127.0.0.1", "1")
            try:
                operation = lab.wait_final(id)
            finally:
                broker.execute_command("REPLICAOF", "NO", "ONE")

        assert operation["status"] == "succeeded"
        assert (lab.effects.count(ref), operation["runs"]) == (1, 1)
