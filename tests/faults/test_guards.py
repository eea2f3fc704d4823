"""The tests of the tests: with a guard switched off, the scenario that guards it must fail."""

import uuid

import pytest

from tests.faults.scenarios import (
    answer_equal_requests_with_one_operation,
    refuse_a_worker_that_slept,
    survive_an_emptied_broker,
)

pytestmark = [pytest.mark.process, pytest.mark.embedded]

CONSTRAINT = "one_operation_a_key"
SEVERAL_MADE = r"30 equal requests made (\d\d|[2-9]) operations"  # how many overlap is the machine's affair
CONSTRAINTS = "SELECT conname FROM pg_constraint WHERE conrelid = 'operations_idempotencyrecord'::regclass"


def without(switch):
    return {"EXTRA_APPS": f"tests.probes,tests.probes.switches.{switch}"}


class TestGuardsOff:
    def test_token_off_lets_a_woken_worker_finish_for_another(self, new_lab):
        processes = ("web", "worker-inventory", "worker-inventory#2", "relay")
        lab = new_lab(*processes, env={"WORKER_SLOTS": "1", **without("TokenOff")})

        with pytest.raises(AssertionError, match="the result is that of a run whose claim was lost"):
            refuse_a_worker_that_slept(lab)

    def test_unique_constraint_off_lets_equal_requests_make_an_operation_each(self, new_lab):
        lab = new_lab("web", env=without("UniqueOff"))
        lab.let_accepts("PERFORM pg_sleep(1);")
        assert CONSTRAINT in {row["conname"] for row in lab.rows(CONSTRAINTS)}
        lab.database.execute(f"ALTER TABLE operations_idempotencyrecord DROP CONSTRAINT {CONSTRAINT}")
        assert CONSTRAINT not in {row["conname"] for row in lab.rows(CONSTRAINTS)}

        with pytest.raises(AssertionError, match=SEVERAL_MADE):
            answer_equal_requests_with_one_operation(lab, count=30)

    def test_relay_off_forgets_what_the_broker_lost(self, new_lab):
        lab = new_lab("web", "worker-inventory")

        with pytest.raises(AssertionError, match="the relay to publish what the broker lost"):
            survive_an_emptied_broker(lab, count=1)

        lab.worker.start()  # nothing else is wrong with this stack
        ref = uuid.uuid4().hex
        assert lab.wait_final(lab.new_user().ask("probe/effect", {"ref": ref}))["status"] == "succeeded"
