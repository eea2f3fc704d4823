"""The broker loses what it holds, is away, or hangs. The truth is elsewhere, so nothing is lost with it."""

import time
import uuid

import pytest

from tests.faults.lab import LONG_SECONDS, RELAY_PERIOD_SECONDS, eventually
from tests.faults.scenarios import survive_an_emptied_broker

pytestmark = [pytest.mark.process, pytest.mark.embedded]

PATIENCE_SECONDS = 1.5  # of a client whose POST needs the broker for nothing
BATCH = 10  # rows the relay moves at once; small, so that copies would show


@pytest.fixture(scope="module")
def lab(new_lab):
    return new_lab("provider", "web", "worker-inventory", "relay", env={"RELAY_BATCH": str(BATCH)})


@pytest.mark.broker
class TestEmptied:
    def test_the_row_says_queued_but_no_message_exists(self, lab):
        """C05 part 1."""
        survive_an_emptied_broker(lab, count=10)

    def test_an_honest_backlog_is_published_again_and_again(self, lab):
        """C05 part 2."""
        user, ref = lab.new_user(), uuid.uuid4().hex
        ids = [user.ask("probe/sleep", {"ref": ref, "seconds": 0.25}) for _ in range(50)]
        began, lengths = time.monotonic(), []

        def all_started() -> bool:
            lengths.append(lab.queue_length("probe.sleep"))
            return lab.effects.count(ref) >= len(ids)

        eventually(all_started, what="fifty effects")
        for id in ids:
            assert lab.wait_final(id)["runs"] == 1
        assert time.monotonic() - began > 3 * RELAY_PERIOD_SECONDS
        assert 0 < max(lengths) <= 50 + BATCH
        assert lab.effects.count(ref) == 50


class TestAway:
    def test_post_hangs_while_the_broker_is_down(self, lab):
        user, ref = lab.new_user(), uuid.uuid4().hex
        lab.stack.servers.valkey.kill()
        try:
            answers = post_often(user, ref)
        finally:
            lab.stack.servers.valkey.restart()

        assert_accepted_and_done(lab, answers, ref)

    def test_post_hangs_while_the_broker_hangs(self, lab):
        user, ref = lab.new_user(), uuid.uuid4().hex
        post_often(user, uuid.uuid4().hex)  # every web process has a connection that is about to hang
        lab.stack.servers.valkey.pause()
        try:
            answers = post_often(user, ref)
        finally:
            lab.stack.servers.valkey.resume()

        assert_accepted_and_done(lab, answers, ref)


def post_often(user, ref):
    return [user.post("probe/effect", {"ref": ref}) for _ in range(6)]


def assert_accepted_and_done(lab, answers, ref):
    assert [answer.status_code for answer in answers] == [202] * len(answers)
    assert max(answer.elapsed.total_seconds() for answer in answers) < PATIENCE_SECONDS
    for answer in answers:
        operation = lab.wait_final(answer.json()["operation_id"], within=LONG_SECONDS)
        assert (operation["status"], operation["runs"]) == ("succeeded", 1)
    assert lab.effects.count(ref) == len(answers)
