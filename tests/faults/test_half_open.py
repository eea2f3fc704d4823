"""A line to Valkey that is gone, and nobody was told: a firewall forgot it, or its machine is off."""

import time
import uuid

import pytest

from tests.faults.lab import LONG_SECONDS

pytestmark = [pytest.mark.process, pytest.mark.embedded]

PATIENCE_SECONDS = 1.5  # of a client whose POST needs the broker for nothing
HEARTBEAT_SECONDS = 2
DEAD_SECONDS = 2 * HEARTBEAT_SECONDS + 10  # to find out, to come back, and to be given what was lost with it


@pytest.fixture(scope="module")
def lab(new_lab):
    return new_lab(
        "web",
        "worker-inventory",
        "relay",
        cabled=True,
        env={"BROKER_HEARTBEAT_SECONDS": str(HEARTBEAT_SECONDS)},
    )


class TestHalfOpenLine:
    def test_is_waited_on_for_ever(self, lab):
        pid = lab.worker.pid
        assert_done(lab, post(lab), within=LONG_SECONDS)

        lab.cable.go_dead()

        assert_done(lab, post(lab), within=DEAD_SECONDS)
        assert_done(lab, post(lab), within=LONG_SECONDS)
        assert (lab.worker.pid, lab.worker.is_alive()) == (pid, True)


class TestHang:
    def test_stops_a_worker_that_has_nothing_to_do_until_it_is_over(self, lab):
        """Old lines and new ones: they are made, and never answered."""
        lab.cable.hang()
        try:
            asked = post(lab)
            time.sleep(DEAD_SECONDS)
        finally:
            lab.cable.mend()

        assert_done(lab, asked, within=LONG_SECONDS)


def post(lab):
    """Ask for an effect, and see that it is accepted soon. Gives the id and the effect's name."""
    ref = uuid.uuid4().hex
    answer = lab.new_user().post("probe/effect", {"ref": ref})
    assert answer.status_code == 202
    assert answer.elapsed.total_seconds() < PATIENCE_SECONDS
    return answer.json()["operation_id"], ref


def assert_done(lab, asked, *, within):
    id, ref = asked
    operation = lab.wait_final(id, within=within)
    assert (operation["status"], operation["runs"], lab.effects.count(ref)) == ("succeeded", 1, 1)
