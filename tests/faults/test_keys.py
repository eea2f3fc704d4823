"""Keys whose process dies, whose request fails, that belong to others, that are over: on the real web."""

import time
import uuid
from statistics import quantiles

import httpx
import pytest

from tests.faults.scenarios import at_once

pytestmark = [pytest.mark.process, pytest.mark.embedded]

FAILING = "RAISE EXCEPTION 'this accept was made to fail';"
DONE_LONG_AGO = """
    UPDATE operations_operation SET finished_at = finished_at - interval '2 days'
    WHERE id = %s RETURNING id"""
ACCEPTED_LONG_AGO = """
    UPDATE operations_operation SET created_at = created_at - interval '60 days'
    WHERE id = %s RETURNING id"""
MANY_THAT_ARE_OVER = """
    WITH made AS (
        INSERT INTO operations_operation
            (id, job_type, schema_version, owner_id, source, status, reason, step, runs, attempt,
            max_attempts, interruptions, waits, replays, depth, deadline_at, resource, waiting_for,
            idempotency_key, request_id, correlation_id, claimed_by, version, finished_at,
            run_at, created_at)
        SELECT gen_random_uuid(), 'probe.effect', 1, %(owner)s, 'api', 'succeeded', '', '',
            1, 1, 5, 0, 0, 0, 0, now(), '', '', 'old-' || n, '', '', '', 3, now() - interval '2 days',
            now() - interval '2 days', now() - interval '2 days'
        FROM generate_series(1, %(count)s) AS n RETURNING id, idempotency_key
    )
    INSERT INTO operations_idempotencyrecord
        (user_id, job_type, idempotency_key, request_hash, operation_id, created_at)
    SELECT %(owner)s, 'probe.effect', idempotency_key, 'v1:0', id, now() FROM made RETURNING id"""
OLD = "SELECT count(*) FROM operations_idempotencyrecord WHERE idempotency_key LIKE 'old-%%'"
LONGEST_STATEMENT = """
    SELECT COALESCE(max(EXTRACT(epoch FROM clock_timestamp() - query_start))::float8, 0) AS seconds
    FROM pg_stat_activity
    WHERE datname = current_database() AND state = 'active' AND query ~* 'DELETE FROM'"""


@pytest.fixture(scope="module")
def lab(new_lab):
    return new_lab("web", "worker-inventory", "relay", env={"WEB_WORKERS": "1"})


class TestDeath:
    """C14."""

    @pytest.mark.parametrize("point", ["accept.before_insert", "accept.committed"])
    def test_of_the_process_leaves_the_key_in_progress_for_ever(self, lab, point):
        """Parts 1 and 2: there is no reservation and no window, so recovery is at once."""
        user, key, body = lab.new_user(), uuid.uuid4().hex, {"ref": uuid.uuid4().hex}
        lab.crash_at("web", f"{point}=kill@1")
        try:
            with pytest.raises(httpx.TransportError):
                user.post("probe/effect", body, key=key)
        finally:
            lab.crash_at("web", "")

        answer = user.post("probe/effect", body, key=key)

        assert answer.status_code in (200, 202)
        assert ("Idempotent-Replayed" in answer.headers) is (point == "accept.committed")
        rows = lab.rows("SELECT id FROM operations_operation WHERE idempotency_key = %s", key)
        assert [str(row["id"]) for row in rows] == [answer.json()["operation_id"]]
        assert lab.wait_final(str(rows[0]["id"]))["status"] == "succeeded"
        assert lab.effects.count(body["ref"]) == 1

    def test_is_suspected_of_work_that_takes_long(self, lab):
        """Part 3: longer than a lease, and the repeat comes meanwhile."""
        user, key, body = lab.new_user(), uuid.uuid4().hex, {"ref": uuid.uuid4().hex, "seconds": 6}
        first = user.post("probe/sleep", body, key=key).json()["operation_id"]
        lab.wait_effects(body["ref"])
        time.sleep(4.5)

        again = user.post("probe/sleep", body, key=key)

        assert (again.status_code, again.json()["operation_id"]) == (202, first)
        assert lab.wait_final(first)["runs"] == 1
        assert lab.effects.count(body["ref"]) == 1


class TestFailure:
    """C15."""

    def test_of_the_server_before_the_commit_is_stored_and_replayed(self, lab):
        """Part 1."""
        user, key, body = lab.new_user(), uuid.uuid4().hex, {"ref": uuid.uuid4().hex}
        lab.let_accepts(FAILING)
        try:
            assert user.post("probe/effect", body, key=key).status_code == 500
        finally:
            lab.let_accepts("")

        again = user.post("probe/effect", body, key=key)

        assert again.status_code == 202
        assert "Idempotent-Replayed" not in again.headers

    def test_of_validation_uses_the_key_up(self, lab):
        """Part 2: the corrected body is accepted under it."""
        user, key = lab.new_user(), uuid.uuid4().hex
        assert user.post("probe/effect", {"wrong": 1}, key=key).status_code == 400

        assert user.post("probe/effect", {"ref": uuid.uuid4().hex}, key=key).status_code == 202

    def test_of_a_replay_to_look_like_the_original_but_for_its_marker(self, lab):
        """Part 3."""
        user, key, body = lab.new_user(), uuid.uuid4().hex, {"ref": uuid.uuid4().hex}
        first, again = (user.post("probe/effect", body, key=key) for _ in range(2))

        assert first.headers["Location"] == again.headers["Location"]
        assert first.json()["operation_id"] == again.json()["operation_id"]
        assert "Idempotent-Replayed" not in first.headers
        assert again.headers["Idempotent-Replayed"] == "true"

    def test_of_the_operation_is_tried_again_by_a_repeat(self, lab):
        """Part 4: a repeat says how it ended, and starts nothing."""
        user, key, body = (
            lab.new_user(),
            uuid.uuid4().hex,
            {"ref": uuid.uuid4().hex, "kind": "bug", "times": 9},
        )
        id = user.post("probe/fail", body, key=key).json()["operation_id"]
        ended = lab.wait_final(id)

        again = user.post("probe/fail", body, key=key)

        assert (again.status_code, again.json()["status"]) == (200, "failed_permanent")
        assert again.json()["error"]["category"] == "bug"
        assert "Retry-After" not in again.headers
        assert lab.operation(id)["version"] == ended["version"]


class TestScope:
    """C16."""

    def test_of_a_key_is_shared_by_two_users(self, lab):
        """Part 1: fifty requests, of two users by turns, under one key and with one body."""
        mine, theirs = lab.new_user(), lab.new_user()
        key, body = uuid.uuid4().hex, {"ref": uuid.uuid4().hex}

        answers = at_once(
            [lambda user=user: user.post("probe/effect", body, key=key) for user in [mine, theirs] * 25]
        )

        of_mine = {answer.json()["operation_id"] for answer in answers[::2]}
        of_theirs = {answer.json()["operation_id"] for answer in answers[1::2]}
        assert (len(of_mine), len(of_theirs), len(of_mine & of_theirs)) == (1, 1, 0)
        assert {answer.status_code for answer in answers} <= {200, 202}
        foreign = theirs.client.get(f"/v1/operations/{of_mine.pop()}")
        assert foreign.status_code == 404

    def test_of_a_key_is_shared_by_two_jobs(self, lab):
        """Part 2."""
        user, key, body = lab.new_user(), uuid.uuid4().hex, {"ref": uuid.uuid4().hex}
        first = user.post("probe/effect", body, key=key)

        other = user.post("probe/sleep", body | {"seconds": 0}, key=key)

        assert (first.status_code, other.status_code) == (202, 202)
        assert other.json()["operation_id"] != first.json()["operation_id"]

    def test_of_a_replay_is_wider_than_that_of_the_media_type(self, lab):
        """Part 4."""
        user, key, body = lab.new_user(), uuid.uuid4().hex, b'{"ref": "x"}'
        headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
        assert user.client.post("/v1/probe/effect", content=body, headers=headers).status_code == 202

        headers["Content-Type"] = "text/plain"

        assert user.client.post("/v1/probe/effect", content=body, headers=headers).status_code == 415

    def test_of_a_key_ends_with_the_token(self, lab):
        """Part 5: a new token of the same user finds the operation."""
        user, key, body = lab.new_user(), uuid.uuid4().hex, {"ref": uuid.uuid4().hex}
        first = user.post("probe/effect", body, key=key).json()["operation_id"]
        token = uuid.uuid4().hex
        lab.rows("UPDATE authtoken_token SET key = %s WHERE user_id = %s RETURNING key", token, user.id)
        user.client.headers["Authorization"] = f"Token {token}"

        assert user.post("probe/effect", body, key=key).json()["operation_id"] == first

    def test_of_two_headers_is_one_of_them(self, lab):
        user = lab.new_user()
        headers = [("Idempotency-Key", "one"), ("Idempotency-Key", "two")]

        answer = user.client.post("/v1/probe/effect", json={"ref": "x"}, headers=headers)

        assert (answer.status_code, answer.json()["type"]) == (400, "/docs/problems#idempotency-key-invalid")

    def test_of_a_body_in_chunks_is_nothing(self, lab):
        def chunks():
            yield b'{"ref": '
            yield b'"x"}'

        answer = lab.new_user().client.post(
            "/v1/probe/effect",
            content=chunks(),
            headers={"Idempotency-Key": "k", "Content-Type": "application/json"},
        )

        assert (answer.status_code, answer.json()["type"]) == (411, "/docs/problems#length-missing")


class TestEnd:
    """C17."""

    def test_of_a_key_is_seen_by_one_request_and_not_by_another(self, lab):
        """Part 1: ten at once make one new operation."""
        user, key, body = lab.new_user(), uuid.uuid4().hex, {"ref": uuid.uuid4().hex}
        first = user.post("probe/effect", body, key=key).json()["operation_id"]
        lab.wait_final(first)
        lab.rows(DONE_LONG_AGO, first)

        answers = at_once([lambda: user.post("probe/effect", body, key=key)] * 10)

        assert {answer.status_code for answer in answers} <= {200, 202}
        assert len({answer.json()["operation_id"] for answer in answers} - {first}) == 1
        rows = lab.rows("SELECT id FROM operations_operation WHERE idempotency_key = %s", key)
        assert len(rows) == 2

    def test_of_many_keys_holds_up_those_who_ask(self, lab):
        """Parts 2 and 4: 200,000 are deleted while twenty requests a second come in; then none is left."""
        user = lab.new_user()
        lab.database.execute(MANY_THAT_ARE_OVER, {"owner": user.id, "count": 200_000})
        lab.stack.process("relay").restart()  # its walk begins at once
        waits, longest = [], 0.0

        while lab.rows(OLD)[0]["count"]:
            began = time.monotonic()
            assert user.post("probe/effect", {"ref": uuid.uuid4().hex}).status_code == 202
            waits.append(time.monotonic() - began)
            longest = max(longest, lab.rows(LONGEST_STATEMENT)[0]["seconds"])
            assert len(waits) < 2_000
            time.sleep(max(0.0, 0.05 - waits[-1]))

        assert len(waits) > 20
        assert quantiles(waits, n=20)[-1] < 0.5
        assert longest < 1.0
        pruned = lab.counted("ops_idempotency_pruned_total")
        assert pruned >= 200_000
        lab.stack.process("relay").restart()
        time.sleep(2.0)
        assert lab.counted("ops_idempotency_pruned_total") - pruned == 0

    def test_of_a_key_comes_before_that_of_its_operation(self, lab):
        """Part 3."""
        user, key, body = lab.new_user(), uuid.uuid4().hex, {"ref": uuid.uuid4().hex, "seconds": 5}
        id = user.post("probe/sleep", body, key=key).json()["operation_id"]
        lab.wait_effects(body["ref"])
        lab.rows(ACCEPTED_LONG_AGO, id)

        lab.stack.process("relay").restart()
        time.sleep(1.5)

        assert user.post("probe/sleep", body, key=key).json()["operation_id"] == id
        assert lab.wait_final(id)["status"] == "succeeded"
