"""Dead letters are seen, can be cleared, and are reported, whatever the broker loses."""

import json
import time
import uuid

import pytest

from tasks.gauges import REASONS
from tests.faults.lab import eventually

pytestmark = [pytest.mark.process, pytest.mark.embedded]

SAMPLED_SECONDS = 10.0  # the relay samples every 5 s
WHY = "tried by a test"
OVERDUE = "UPDATE operations_operation SET deadline_at = clock_timestamp() WHERE id = %s RETURNING id"


@pytest.fixture(scope="module")
def lab(new_lab, sentry):
    return new_lab("web", "worker-inventory", "relay", env={"SENTRY_DSN": sentry.dsn})


def fail(lab, kind):
    """Let an operation fail for good in its first run, and give its row; another run would succeed."""
    body = {"ref": uuid.uuid4().hex, "kind": kind, "times": 1}
    return lab.wait_final(lab.new_user().ask("probe/fail", body))


def letters(lab, *arguments):
    """Run a `deadletters` command and give its answer."""
    return json.loads(lab.stack.manage("deadletters", *arguments, "--json"))


def letter_of(lab, operation):
    return lab.rows("SELECT * FROM operations_deadletter WHERE operation_id = %s", operation["id"])[0]


def depths(lab):
    """Give the gauge by reason, those of zero left out."""
    seen = {reason: lab.counted("ops_dlq_depth", job_type="probe.fail", reason=reason) for reason in REASONS}
    return {reason: number for reason, number in seen.items() if number}


class TestSeen:
    """C27."""

    def test_nobody_sees_them_or_can_clear_them(self, lab):
        """C27 parts 1, 2 and 4, in this order: each goes on where the one before has ended."""
        failed = {kind: fail(lab, kind) for kind in ("bug", "not_found", "permission")}
        letter = {kind: letter_of(lab, operation) for kind, operation in failed.items()}

        see_three_by_reason(lab, letter.values())
        discard_one(lab, letter["bug"])
        replay_all(lab, [letter["not_found"], letter["permission"]])

        assert lab.operation(failed["bug"]["id"])["status"] == "ignored"
        for kind in ("not_found", "permission"):
            run_again_as_the_same(lab, failed[kind])

    def test_queues_fill_unseen(self, lab):
        lab.worker.stop()
        try:
            ids = [lab.new_user().ask("probe/effect", {"ref": uuid.uuid4().hex}) for _ in range(3)]
            first = lab.operation(ids[0])["run_at"].timestamp()

            def sampled():
                depth = lab.counted("ops_queue_depth", queue="probe.effect", state="queued")
                oldest = lab.counted("ops_queue_oldest_ready_timestamp_seconds", queue="probe.effect")
                return depth == len(ids) and abs(oldest - first) < 0.001

            eventually(sampled, within=SAMPLED_SECONDS, what="three that wait")
        finally:
            lab.worker.start()
        eventually(
            lambda: lab.counted("ops_queue_depth", queue="probe.effect") == 0,
            within=2 * SAMPLED_SECONDS,
            what="an empty queue",
        )


class TestReported:
    def test_never_when_the_broker_loses_the_request_for_it(self, lab, sentry):
        """The relay buries one while no worker runs, the broker is emptied, and a worker comes back."""
        lab.worker.stop()
        try:
            id = lab.new_user().ask("probe/effect", {"ref": uuid.uuid4().hex})
            lab.rows(OVERDUE, id)
            assert lab.wait_final(id)["reason"] == "deadline_passed"
            eventually(lambda: lab.queue_length("dead_letter") == 1, what="the request for a report")

            lab.flush_broker()

            eventually(lambda: lab.queue_length("dead_letter") == 1, what="the relay to ask again")
            lab.flush_broker()
        finally:
            lab.worker.start()
        operation = lab.operation(id)
        letter = eventually(
            lambda: (now := letter_of(lab, operation))["reported_at"] and now, what="the report"
        )
        [event] = eventually(lambda: sentry.events(operation_id=id), what="the event")
        assert event["fingerprint"] == ["probe.effect", letter["signature"]]
        assert event["tags"]["reason"] == "deadline_passed"
        assert lab.worker.output().count('"dead_letter.reported"') == 1


def see_three_by_reason(lab, written):
    three = {"bug": 1, "not_found": 1, "permission": 1}
    eventually(lambda: depths(lab) == three, within=SAMPLED_SECONDS, what="three by reason")
    oldest = lab.counted("ops_dlq_oldest_timestamp_seconds", job_type="probe.fail")
    assert oldest == pytest.approx(min(each["created_at"].timestamp() for each in written), abs=0.001)
    assert time.time() - oldest > 0


def discard_one(lab, letter):
    letters(lab, "discard", str(letter["id"]), "--reason", WHY)

    two = {"not_found": 1, "permission": 1}
    eventually(lambda: depths(lab) == two, within=SAMPLED_SECONDS, what="two by reason")
    assert [each["id"] for each in letters(lab, "list", "--resolution", "discarded")] == [letter["id"]]


def replay_all(lab, waiting):
    said = letters(lab, "replay", "--job-type", "probe.fail", "--reason", WHY)

    assert {each["id"] for each in said["outcomes"]} == {each["id"] for each in waiting}
    [batch] = lab.rows("SELECT * FROM operations_auditentry WHERE action = 'replay_batch'")
    assert (batch["actor"].partition(":")[0], batch["reason"]) == ("cli", WHY)
    assert batch["before"] == {"filter": {"job_type": "probe.fail"}, "count": len(waiting)}
    assert batch["after"] == {"done": len(waiting), "refused": 0, "untouched": 0}


def run_again_as_the_same(lab, failed):
    done = lab.wait_for(failed["id"], "succeeded")
    assert (done["runs"], done["replays"], done["idempotency_key"]) == (2, 1, failed["idempotency_key"])
    moves = [(to, reason) for _, to, reason in lab.history(failed["id"])]
    assert moves == [
        ("queued", "accepted"),
        ("processing", ""),
        ("failed_permanent", failed["reason"]),
        ("queued", "replayed"),
        ("processing", ""),
        ("succeeded", ""),
    ]
    assert letter_of(lab, failed)["resolution"] == "replayed_ok"
