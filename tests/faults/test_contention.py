"""C30: many at once want the same rows. And a line: many operations of one resource, one after the other."""

import json
import subprocess
import sys
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from deploy.local import procfile
from tests.faults.lab import LONG_SECONDS, eventually
from tests.faults.lines import LINES, prepare, written

pytestmark = [pytest.mark.process, pytest.mark.embedded]

CLIENTS = 20
LOAD_SECONDS = 15.0
PAUSE_SECONDS = 0.5  # between a client's answer and its next request
LETTERS = 1_000
BULK_SECONDS = 120  # 10 on an idle machine
LINE = 20
TROUBLE = ("deadlock detected", "could not serialize", "lock timeout", "LockNotAvailable", "Traceback")

DEAD = """
    WITH dead AS (
        INSERT INTO operations_operation
            (id, job_type, schema_version, owner_id, source, status, reason, step, runs, attempt,
             max_attempts, interruptions, waits, replays, deadline_at, resource, waiting_for, idempotency_key,
             request_id, correlation_id, claimed_by, version, depth, first_started_at, started_at,
             finished_at)
        SELECT gen_random_uuid(), 'probe.effect', 1, %(owner)s, 'api', 'failed_permanent', 'bug', '', 1, 1, 3,
            0, 0, 0, now() + interval '1 hour', '', '', '', '', '', '', 1, 0, now(), now(), now()
        FROM generate_series(1, %(count)s) RETURNING id
    ), data AS (
        INSERT INTO operations_operationdata (operation_id, payload)
        SELECT id, jsonb_build_object('ref', %(ref)s::text) FROM dead
    )
    INSERT INTO operations_deadletter
        (operation_id, job_type, reason, category, error_class, error_message, signature, dependency,
         idempotency_key, attempts, runs, correlation_id, schema_version, traceback, certainty, expected,
         reported_at, resolution)
    SELECT id, 'probe.effect', 'bug', 'bug', 'KeyError', '', '', '', '', 1, 1, '', 1, '', '', false, now(),
        'waiting' FROM dead RETURNING id"""


@pytest.fixture(scope="module")
def lab(new_lab):
    workers = ("worker-inventory", "worker-inventory#2", "worker-inventory#3")
    return prepare(new_lab("web", *workers, "relay", env=LINES))


@pytest.fixture
def untroubled(lab):
    """Hold every log to having told of no trouble while the test ran."""
    logs = [process.log for process in lab.stack.processes.values()]
    before = [log.stat().st_size for log in logs]
    yield
    told = "".join(log.read_text()[size:] for log, size in zip(logs, before, strict=True))
    assert [trouble for trouble in TROUBLE if trouble in told] == []


@pytest.fixture
def act(lab):
    """Give a function that begins to replay or discard these dead letters, in a process of its own."""
    with ExitStack() as started:

        def begin(name, letters):
            command = [sys.executable, "manage.py", "deadletters", name, *map(str, letters)]
            process = started.enter_context(
                subprocess.Popen(
                    [*command, "--reason", "a test", "--json"],
                    env=lab.stack.env,
                    cwd=procfile.ROOT,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            started.callback(process.kill)
            return process

        yield begin


class TestManyAtOnce:
    def test_a_client_hears_that_the_database_is_locked(self, lab, untroubled):
        """Part 1: twenty clients send and look for a quarter of a minute, while the workers work."""
        until = time.monotonic() + LOAD_SECONDS
        users = [lab.new_user() for _ in range(CLIENTS)]
        with ThreadPoolExecutor(CLIENTS) as threads:
            seen = list(threads.map(lambda user: use(user, until), users))

        codes = Counter(code for codes, _ in seen for code in codes)
        ids = [id for _, asked in seen for id in asked]
        assert set(codes) == {200, 202}
        assert len(ids) == codes[202] > CLIENTS * 5
        ends = eventually(
            lambda: finished(lab, ids), within=2 * LONG_SECONDS, what=f"the end of {len(ids)} operations"
        )
        assert ends == [{"status": "succeeded", "runs": 1, "attempt": 1, "count": len(ids)}]
        assert sum(len(asked) for _, asked in seen) == len(set(ids))


def use(user, until):
    """Ask and look again and again; give the status of each answer, and the ids of what was accepted."""
    codes, ids = [], []
    while time.monotonic() < until:
        asked = user.post("probe/effect", {"ref": user.client.headers["Authorization"][-8:]})
        codes.append(asked.status_code)
        if asked.status_code == 202:
            ids.append(asked.json()["operation_id"])
            codes.append(user.client.get(f"/v1/operations/{ids[-1]}").status_code)
        time.sleep(PAUSE_SECONDS)
    return codes, ids


def finished(lab, ids):
    """Count the operations by how they ended; nothing as long as one has not."""
    counts = lab.rows(
        "SELECT status, runs, attempt, count(*) FROM operations_operation WHERE id = ANY(%s::uuid[])"
        " GROUP BY status, runs, attempt",
        ids,
    )
    return [] if {row["status"] for row in counts} & {"queued", "processing", "retry_scheduled"} else counts


def outcomes(process):
    output, errors = process.communicate(timeout=BULK_SECONDS)
    assert "Traceback" not in errors, errors
    return json.loads(output)["outcomes"]


class TestBulk:
    @pytest.mark.timeout(2 * BULK_SECONDS)
    def test_two_of_them_deadlock_in_opposite_order(self, lab, act, untroubled):
        """Part 2: one replays, the other discards the same thousand, while runs have their leases renewed."""
        user, ref = lab.new_user(), uuid.uuid4().hex
        beating = [user.ask("probe/sleep", {"ref": f"{ref}-{n}", "seconds": 6}) for n in range(2)]
        for n in range(2):
            lab.wait_effects(f"{ref}-{n}")
        letters = [
            row["id"] for row in lab.database.execute(DEAD, {"owner": user.id, "count": LETTERS, "ref": ref})
        ]

        acts = [act("replay", letters), act("discard", reversed(letters))]
        replayed, discarded = (
            {outcome["id"] for outcome in outcomes(each) if outcome["ok"]} for each in acts
        )

        assert replayed, "one act was over before the other began"
        assert discarded, "one act was over before the other began"
        assert replayed | discarded == set(letters)
        assert not replayed & discarded
        eventually(
            lambda: lab.rows(COUNTS, letters)[0]["replayed_ok"] == len(replayed),
            what="the end of the replayed",
        )
        assert lab.rows(COUNTS, letters) == [
            {
                "replayed_ok": len(replayed),
                "discarded": len(discarded),
                "succeeded": len(replayed),
                "ignored": len(discarded),
                "runs": LETTERS + len(replayed),
            }
        ]
        assert lab.effects.count(ref) == len(replayed)
        for id in beating:
            operation = lab.wait_final(id)
            assert (operation["status"], operation["runs"]) == ("succeeded", 1)


COUNTS = """
    SELECT count(*) FILTER (WHERE resolution = 'replayed_ok') AS replayed_ok,
        count(*) FILTER (WHERE resolution = 'discarded') AS discarded,
        count(*) FILTER (WHERE o.status = 'succeeded') AS succeeded,
        count(*) FILTER (WHERE o.status = 'ignored') AS ignored,
        sum(o.runs)::int AS runs
    FROM operations_deadletter AS d JOIN operations_operation AS o ON o.id = d.operation_id
    WHERE d.id = ANY(%s)"""


class TestLine:
    def test_three_workers_disturb_the_order(self, lab, untroubled):
        """Twenty operations of one resource: each begins after the one before it has ended."""
        user, what = lab.new_user(), uuid.uuid4().hex
        ids = [
            user.ask("probe/turn", {"ref": f"{what}-{place}", "what": what, "seconds": 0.02})
            for place in range(LINE)
        ]

        for id in ids:
            assert lab.wait_final(id)["status"] == "succeeded"

        assert [row["operation_id"] for row in written(lab, what)] == ids
        assert [lab.operation(id)["resource_seq"] for id in ids] == list(range(1, LINE + 1))
        moves = [lab.moves(id) for id in ids]
        assert [[move["to_status"] for move in each] for each in moves] == [
            ["queued", "processing", "succeeded"]
        ] * LINE
        began, ended = ([move["at"] for move in each] for each in list(zip(*moves, strict=True))[1:])
        assert all(end < begin for end, begin in zip(ended, began[1:], strict=False))
        workers = {move["actor"] for each in moves for move in each[1:]}
        assert len(workers) > 1, "one worker did all of it"
