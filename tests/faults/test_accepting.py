"""Requests that are held before their commit, fail there, or meet others like them, on the real web."""

import json
import socket
import struct
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx
import pytest

from tests.faults.lab import eventually
from tests.faults.scenarios import answer_equal_requests_with_one_operation, at_once, hold_first

pytestmark = [pytest.mark.process, pytest.mark.embedded]

HELD_A_SECOND = "PERFORM pg_sleep(1);"  # the bounded wait for a key, LOCK_TIMEOUT_MS, is two
HELD_LONGER = "PERFORM pg_sleep(4);"
UNSENT = "SELECT id FROM operations_operation WHERE id = ANY(%s::uuid[]) AND published_at IS NULL"
FAILING = "RAISE EXCEPTION 'this accept was made to fail';"


@pytest.fixture(scope="module")
def lab(new_lab):
    return new_lab("web", "worker-inventory", "relay", env={"WORKER_SLOTS": "3"})


class TestBurst:
    def test_is_done_without_its_messages_and_without_the_relay(self, lab):
        """Most of it gets no message of its own (decision 0011); of those a worker is reminded."""
        relay, user = lab.stack.process("relay"), lab.new_user()
        relay.stop()
        try:
            lab.worker.stop()
            try:
                ids = [user.ask("probe/effect", {"ref": uuid.uuid4().hex}) for _ in range(40)]
                unsent = lab.rows(UNSENT, ids)
                lab.flush_broker()
            finally:
                lab.worker.start()

            assert len(unsent) >= 10
            assert {lab.wait_final(row["id"], within=10.0)["status"] for row in unsent} == {"succeeded"}
        finally:
            relay.start()


class TestSameKey:
    """C13."""

    def test_thirty_equal_requests_run_thirty_times(self, lab):
        """Part 1."""
        lab.let_accepts(HELD_A_SECOND)

        id = answer_equal_requests_with_one_operation(lab, count=30)

        operation = lab.wait_final(id)
        assert (operation["status"], operation["runs"]) == ("succeeded", 1)
        assert lab.effects.count(operation["payload"]["ref"]) == 1

    def test_the_first_commits_and_another_still_hears_that_it_is_in_progress(self, lab):
        """Thirty times 202, or 200 once it is final: the first one commits within everybody's wait."""
        lab.let_accepts(HELD_A_SECOND)
        user, key, body = lab.new_user(), uuid.uuid4().hex, {"ref": uuid.uuid4().hex}
        other = lab.new_user()

        answers = at_once([lambda: user.post("probe/effect", body, key=key)] * 30)

        assert {answer.status_code for answer in answers} <= {200, 202}
        ids = {answer.json()["operation_id"] for answer in answers}
        assert len(ids) == 1
        assert user.post("probe/effect", {"ref": "another"}, key=key).status_code == 422
        theirs = other.post("probe/effect", body, key=key)
        assert theirs.status_code == 202
        assert theirs.json()["operation_id"] not in ids

    def test_another_body_is_told_to_wait_instead_of_being_refused(self, lab):
        """Part 2, the first committing within the wait."""
        lab.let_accepts(HELD_A_SECOND)
        user, key, refs = lab.new_user(), uuid.uuid4().hex, [uuid.uuid4().hex for _ in range(6)]
        with ThreadPoolExecutor(1) as threads:
            first = hold_first(lab, user, "probe/effect", {"ref": refs[0]}, key=key, threads=threads)

            others = at_once([post(user, ref, key) for ref in refs[1:]])

        assert [answer.status_code for answer in others] == [422] * 5
        assert_only_first_has_an_effect(lab, first.result(), refs)

    def test_another_body_outwaits_a_request_that_is_held_too_long(self, lab):
        """Part 2, the first committing later than that: nobody can see its body, so 409 for every body."""
        lab.let_accepts(HELD_LONGER)
        user, key, refs = lab.new_user(), uuid.uuid4().hex, [uuid.uuid4().hex for _ in range(6)]
        with ThreadPoolExecutor(1) as threads:
            first = hold_first(lab, user, "probe/effect", {"ref": refs[0]}, key=key, threads=threads)

            others = at_once([post(user, ref, key) for ref in [refs[0], *refs[1:]]])

        assert [answer.status_code for answer in others] == [409] * 6
        assert all(int(answer.headers["Retry-After"]) >= 1 for answer in others)
        assert_only_first_has_an_effect(lab, first.result(), refs)

    def test_different_keys_wait_for_each_other(self, lab):
        """Part 3."""
        lab.let_accepts(HELD_A_SECOND)
        user = lab.new_user()
        began = time.monotonic()

        answers = at_once([post(user, uuid.uuid4().hex, uuid.uuid4().hex) for _ in range(20)])

        assert time.monotonic() - began < 5
        assert [answer.status_code for answer in answers] == [202] * 20
        assert len({answer.json()["operation_id"] for answer in answers}) == 20


class TestBeforeCommit:
    """C08."""

    def test_a_worker_looks_for_a_row_that_is_not_there_yet(self, lab):
        """Part 1: three idle workers, and four seconds in which a message sent too early would be taken."""
        lab.let_accepts(HELD_LONGER)
        ref = uuid.uuid4().hex

        id = lab.new_user().ask("probe/effect", {"ref": ref})

        operation = lab.wait_final(id)
        assert (operation["status"], operation["runs"], operation["attempt"]) == ("succeeded", 1, 1)
        assert "message.names_nothing" not in lab.worker.output()

    def test_a_failing_callback_turns_success_into_500(self, lab):
        """Part 3: publishing raises, with another callback registered behind it."""
        web = lab.stack.process("web")
        web.env["EXTRA_APPS"] += ",tests.probes.switches.BrokenPublish"
        web.restart()
        lab.let_accepts("")
        ref = uuid.uuid4().hex

        answer = lab.new_user().post("probe/effect", {"ref": ref})

        assert answer.status_code == 202
        id = answer.json()["operation_id"]
        assert "the callback that publishes was made to fail" in web.output()
        lab.wait_effects(f"second-callback-of-{id}", 1)
        assert lab.wait_final(id)["status"] == "succeeded"
        assert lab.effects.count(ref) == 1

    def test_a_rolled_back_request_leaves_a_message(self, lab):
        """Part 2."""
        lab.let_accepts(FAILING)
        lab.kill_workers()  # or one of them would take the message before it is counted
        user, key = lab.new_user(), uuid.uuid4().hex
        before = lab.queue_length("probe.effect")

        answer = user.post("probe/effect", {"ref": uuid.uuid4().hex}, key=key)

        assert answer.status_code == 500
        assert lab.rows("SELECT id FROM operations_operation WHERE owner_id = %s", user.id) == []
        assert lab.rows("SELECT id FROM operations_idempotencyrecord WHERE user_id = %s", user.id) == []
        assert lab.queue_length("probe.effect") == before


class TestKilledWeb:
    def test_forgets_what_the_database_goes_on_to_accept(self, lab):
        """The statement is on its way: nobody hears of its commit but who asks again."""
        lab.let_accepts(HELD_A_SECOND)
        for worker in lab.workers:  # an earlier test may have killed them
            lab.start_again(worker)
        user, key, ref, web = lab.new_user(), uuid.uuid4().hex, uuid.uuid4().hex, lab.stack.process("web")
        with ThreadPoolExecutor(1) as threads:
            first = hold_first(lab, user, "probe/effect", {"ref": ref}, key=key, threads=threads)
            web.kill(whom="group")

            with pytest.raises(httpx.TransportError):
                first.result()
        web.restart()

        answer = user.post("probe/effect", {"ref": ref}, key=key)

        assert lab.wait_final(answer.json()["operation_id"])["status"] == "succeeded"
        assert lab.effects.count(ref) == 1
        assert len(lab.rows("SELECT id FROM operations_operation WHERE owner_id = %s", user.id)) == 1


def post(user, ref, key):
    return lambda: user.post("probe/effect", {"ref": ref}, key=key)


def assert_only_first_has_an_effect(lab, first, refs):
    assert first.status_code == 202
    assert lab.wait_final(first.json()["operation_id"])["status"] == "succeeded"
    assert [lab.effects.count(ref) for ref in refs] == [1, 0, 0, 0, 0, 0]


class TestClientThatGoesAway:
    """C13's kind: the connection ends before the client has heard anything."""

    @pytest.fixture
    def send(self, lab):
        """Give a function that sends a request, or the beginning of one, and breaks the connection."""
        user, key, ref = lab.new_user(), uuid.uuid4().hex, uuid.uuid4().hex
        body = json.dumps({"ref": ref}).encode()
        url = urlsplit(lab.stack.api_url)
        head = (
            f"POST /v1/probe/effect HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Type: application/json\r\n"
            f"Authorization: {user.client.headers['Authorization']}\r\n"
            f"Idempotency-Key: {key}\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode()

        def send(share):
            whole = head + body
            with socket.create_connection((url.hostname, url.port), timeout=5) as line:
                line.sendall(whole[: int(len(whole) * share)])
                time.sleep(0.1)
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        def again():
            return user.post("probe/effect", {"ref": ref}, key=key)

        def made():
            return [
                str(row["id"])
                for row in lab.rows("SELECT id FROM operations_operation WHERE idempotency_key = %s", key)
            ]

        return send, again, made

    @pytest.mark.parametrize("share", [0.2, 0.8, 0.99])
    def test_in_the_middle_of_its_request_has_asked_for_nothing(self, send, share):
        sent, again, made = send
        sent(share)
        time.sleep(0.3)
        assert made() == []

        answer = again()

        assert answer.status_code == 202
        assert made() == [answer.json()["operation_id"]]

    def test_before_its_answer_finds_what_it_has_asked_for(self, send):
        sent, again, made = send
        sent(1)
        [accepted] = eventually(made, what="the operation of who has gone")

        answer = again()

        assert answer.json()["operation_id"] == accepted
        assert answer.headers["Idempotent-Replayed"] == "true"
        assert made() == [accepted]
