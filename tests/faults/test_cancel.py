"""Cancel on real processes: what it ends stays ended, and what runs nevertheless says so."""

import random
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.faults.lab import RECOVERY_SECONDS, eventually

pytestmark = [pytest.mark.process, pytest.mark.embedded]

RACES = 200
ENDS = """
    SELECT o.id, o.status, o.reason, o.runs, o.cancel_requested_at IS NOT NULL AS asked,
        array_agg(t.to_status ORDER BY t.id) AS ends
    FROM operations_operation AS o JOIN operations_transition AS t ON t.operation_id = o.id
    WHERE t.to_status IN ('succeeded', 'ignored', 'failed_permanent') AND o.owner_id = %s
    GROUP BY o.id"""


@pytest.fixture(scope="module")
def lab(new_lab):
    """Beats are quick, so that runs of some tenths of a second hear what they are asked."""
    quick = {"HEARTBEAT_SECONDS": "0.1", "WORKER_SLOTS": "4"}
    return new_lab("web", "worker-inventory", "relay", env=quick)


def cancel(user, id):
    return user.client.post(f"/v1/operations/{id}/cancel")


class TestCancel:
    """C11."""

    def test_is_overwritten_by_the_end_of_its_run(self, lab):
        """C11 part 1: a job of six seconds, cancelled after two."""
        user, ref = lab.new_user(), uuid.uuid4().hex
        id = user.ask("probe/heed", {"ref": ref, "seconds": 6})
        lab.wait_effects(ref)
        time.sleep(2)  # what the case says; the effect is at its beginning

        answer = cancel(user, id)

        assert (answer.status_code, answer.json()["status"]) == (202, "processing")
        ended = lab.wait_final(id, within=2)
        assert (ended["status"], ended["reason"], ended["runs"]) == ("ignored", "cancelled", 1)
        assert cancel(user, id).status_code == 200
        time.sleep(5)  # longer than it would have run, and than a relay needs to find something to do
        assert lab.operation(id) == ended
        assert lab.effects.count(ref) == 1

    def test_is_overwritten_by_a_job_that_does_not_look(self, lab):
        """C11 part 1: then it was too late, and that is said."""
        user, ref = lab.new_user(), uuid.uuid4().hex
        id = user.ask("probe/sleep", {"ref": ref, "seconds": 1})
        lab.wait_effects(ref)

        assert cancel(user, id).status_code == 202

        assert lab.wait_final(id)["status"] == "succeeded"
        too_late = cancel(user, id)
        assert (too_late.status_code, too_late.json()["type"]) == (409, "/docs/problems#not-cancellable")

    def test_is_forgotten_by_a_worker_that_starts_later(self, lab):
        """C11 part 2: the message still waits, and names what is over."""
        user, ref, after = lab.new_user(), uuid.uuid4().hex, uuid.uuid4().hex
        lab.kill_workers()
        id = user.ask("probe/effect", {"ref": ref})
        assert cancel(user, id).status_code == 200
        assert lab.queue_length("probe.effect") == 1
        next_id = user.ask("probe/effect", {"ref": after})

        for worker in lab.workers:
            worker.start()

        lab.wait_final(next_id, within=RECOVERY_SECONDS)
        assert (lab.operation(id)["reason"], lab.operation(id)["runs"]) == ("cancelled", 0)
        assert (lab.effects.count(ref), lab.effects.count(after)) == (0, 1)

    def test_loses_what_was_written_into_the_row_during_a_run(self, lab):
        """C11 part 3: nobody writes back columns that they read long ago, and that are not theirs."""
        user, ref = lab.new_user(), uuid.uuid4().hex
        id = user.ask("probe/sleep", {"ref": ref, "seconds": 1})
        lab.wait_effects(ref)
        lab.rows(
            "UPDATE operations_operation SET correlation_id = 'a note of the shift',"
            " deadline_at = deadline_at + interval '1 day' WHERE id = %s RETURNING id",
            id,
        )
        noted = lab.operation(id)

        ended = lab.wait_final(id)

        assert ended["status"] == "succeeded"
        assert {name: ended[name] for name in ("correlation_id", "deadline_at", "cancel_requested_at")} == {
            name: noted[name] for name in ("correlation_id", "deadline_at", "cancel_requested_at")
        }

    def test_and_an_end_leave_a_row_with_two_ends(self, lab):
        """C11 part 4: two hundred, each cancelled at some moment between its acceptance and its end."""
        user, dice = lab.new_user(), random.Random(11)
        plans = [(uuid.uuid4().hex, dice.uniform(0, 0.4), dice.uniform(0, 0.8)) for _ in range(RACES)]

        with ThreadPoolExecutor(8) as threads:
            raced = list(threads.map(lambda plan: race(user, *plan), plans))

        eventually(lambda: len(lab.rows(ENDS, user.id)) == RACES, what="the end of all", within=60)
        rows = {str(row["id"]): row for row in lab.rows(ENDS, user.id)}
        for id, ref, answer in raced:
            row = rows[id]
            assert row["ends"] == [row["status"]]
            assert (answer, row["status"], row["reason"]) in {
                (200, "ignored", "cancelled"),
                (202, "ignored", "cancelled"),
                (202, "succeeded", ""),
                (409, "succeeded", ""),
            }
            assert lab.effects.count(ref) == row["runs"]
        kinds = {(answer, rows[id]["status"], min(rows[id]["runs"], 1)) for id, _, answer in raced}
        assert {(200, "ignored", 0), (202, "ignored", 1), (409, "succeeded", 1)} <= kinds, "no race at all"


def race(user, ref, seconds, cancel_after):
    id = user.ask("probe/heed", {"ref": ref, "seconds": seconds})
    time.sleep(cancel_after)
    return id, ref, cancel(user, id).status_code


class TestWait:
    def test_answers_when_the_operation_has_changed(self, lab):
        """On the web server as it is deployed."""
        user, ref = lab.new_user(), uuid.uuid4().hex
        id = user.ask("probe/heed", {"ref": ref, "seconds": 1})
        lab.wait_effects(ref)
        known = user.client.get(f"/v1/operations/{id}").headers["ETag"]

        began = time.monotonic()
        answer = user.client.get(f"/v1/operations/{id}", headers={"If-None-Match": known, "Prefer": "wait=5"})

        assert (answer.status_code, answer.json()["status"]) == (200, "succeeded")
        assert answer.headers["Preference-Applied"] == "wait=5"
        assert time.monotonic() - began < 3

    def test_leaves_threads_to_those_who_do_not_wait(self, lab):
        """Of thirty who would wait, a few of each process do; the others are answered meanwhile."""
        user = lab.new_user()
        lab.kill_workers()
        id = user.ask("probe/effect", {"ref": uuid.uuid4().hex})
        with ThreadPoolExecutor(30) as threads:
            waiting = [
                threads.submit(user.client.get, f"/v1/operations/{id}", headers={"Prefer": "wait=5"})
                for _ in range(30)
            ]
            began = time.monotonic()
            asked = user.client.get(f"/v1/operations/{id}")
            seconds = time.monotonic() - began
            answers = [each.result() for each in waiting]
        for worker in lab.workers:
            worker.start()

        assert (asked.status_code, seconds < 2) == (200, True)
        assert {answer.status_code for answer in answers} == {200}
        granted = [answer for answer in answers if "Preference-Applied" in answer.headers]
        assert 1 <= len(granted) <= 2 * int(lab.stack.env.get("WEB_WORKERS", "2"))
