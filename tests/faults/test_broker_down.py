"""The broker is down, or takes what it is sent and does not answer. Requests need the database alone."""

import uuid

import pytest

from tests.faults.lab import eventually
from tests.faults.scenarios import at_once

pytestmark = [pytest.mark.process, pytest.mark.embedded]

AT_ONCE = 20
PATIENCE_SECONDS = 2.0  # of a client
PAUSE_MS = 60_000  # longer than the test: it ends the pause itself


@pytest.fixture(scope="module")
def lab(new_lab):
    return new_lab("web", "worker-inventory", "relay")


class TestPost:
    """C06."""

    def test_hangs_or_fails_while_the_broker_is_down(self, lab):
        """C06 part 1."""
        user, ref = lab.new_user(), uuid.uuid4().hex
        lab.stack.servers.valkey.kill()
        try:
            answers = [*post_at_once(user, ref), *post_at_once(user, ref)]
            assert_accepted(lab, answers)
        finally:
            lab.stack.servers.valkey.restart()

        assert_done_once(lab, answers, ref)

    def test_hangs_or_fails_while_the_broker_does_not_answer(self, lab):
        """C06 part 2."""
        user, ref = lab.new_user(), uuid.uuid4().hex
        with lab.broker as broker:
            broker.execute_command("CLIENT", "PAUSE", PAUSE_MS, "WRITE")
            try:
                answers = [*post_at_once(user, ref), *post_at_once(user, ref)]
                assert_accepted(lab, answers)
            finally:
                broker.execute_command("CLIENT", "UNPAUSE")

        assert_done_once(lab, answers, ref)


def post_at_once(user, ref):
    return at_once([lambda: user.post("probe/effect", {"ref": ref})] * AT_ONCE)


def assert_accepted(lab, answers):
    """Each was answered soon, with 202, and has a row. None was refused, so none is mixed."""
    assert [answer.status_code for answer in answers] == [202] * (2 * AT_ONCE)
    assert max(answer.elapsed.total_seconds() for answer in answers) < PATIENCE_SECONDS
    rows = [lab.operation(answer.json()["operation_id"]) for answer in answers]
    assert {row["status"] for row in rows} == {"queued"}


def assert_done_once(lab, answers, ref):
    eventually(lambda: lab.effects.count(ref) >= len(answers), what="all effects")
    for answer in answers:
        operation = lab.wait_final(answer.json()["operation_id"])
        assert (operation["status"], operation["runs"]) == ("succeeded", 1)
    assert lab.effects.count(ref) == len(answers)
