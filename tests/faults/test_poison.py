"""A job kills whoever runs it. Its attempts are counted when they begin, so it ends; the others go on."""

import signal
import time
import uuid

import pytest

from tests.faults.lab import LEASE_SECONDS, RELAY_PERIOD_SECONDS

pytestmark = [pytest.mark.process, pytest.mark.embedded, pytest.mark.broker]

OTHERS = 20
STARTS = 3  # max_attempts of the probes: Backoff(1, 2)
# Three lost leases, each seen in the next relay period, and two pauses of at most 2 s and 4 s.
POISON_SECONDS = STARTS * (LEASE_SECONDS + RELAY_PERIOD_SECONDS) + 6 + 15
# Longer than whatever could start it again: a lease, a relay period, the republishing, the longest pause.
QUIET_SECONDS = LEASE_SECONDS + RELAY_PERIOD_SECONDS + 2 + 4


@pytest.fixture(scope="module")
def lab(new_lab):
    return new_lab("web", "worker-inventory", "relay", env={"WORKER_SLOTS": "1"})


class TestPoison:
    """C02."""

    def test_takes_one_worker_along_after_another_for_ever(self, lab):
        user = lab.new_user()
        refs = [uuid.uuid4().hex for _ in range(OTHERS)]
        poison = uuid.uuid4().hex

        killer = user.ask("probe/die", {"ref": poison, "signal": int(signal.SIGKILL)})
        others = [user.ask("probe/effect", {"ref": ref}) for ref in refs]

        dead = lab.wait_final(killer, within=POISON_SECONDS)
        assert (dead["status"], dead["reason"]) == ("failed_permanent", "worker_lost")
        assert (dead["runs"], dead["attempt"], dead["max_attempts"]) == (STARTS, STARTS, STARTS)
        assert [call.run for call in lab.effects.calls(poison)] == ["1", "2", "3"]
        for id in others:
            other = lab.wait_final(id)
            assert (other["status"], other["runs"]) == ("succeeded", 1)
        assert [lab.effects.count(ref) for ref in refs] == [1] * OTHERS
        [letter] = lab.rows("SELECT * FROM operations_deadletter WHERE operation_id = %s", killer)
        assert (letter["reason"], letter["category"], letter["attempts"]) == ("worker_lost", "poison", STARTS)

        time.sleep(QUIET_SECONDS)

        assert lab.effects.count(poison) == STARTS, "it was started a fourth time"
        assert lab.worker.is_alive()
