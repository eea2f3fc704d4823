"""An outage of a dependency: it fills no dead letters, burns no attempts, and its end is no storm.

OUTAGE_SECONDS and OUTAGE_OPERATIONS of the environment make it as long and as large as one wants.
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from itertools import pairwise

import httpx
import pytest

from deploy.local.provider_store import Fault
from tests.faults.lab import eventually

pytestmark = [pytest.mark.process, pytest.mark.embedded]

SECONDS = float(os.environ.get("OUTAGE_SECONDS", "8"))
OPERATIONS = int(os.environ.get("OUTAGE_OPERATIONS", "120"))
MORE = OPERATIONS // 4
RATE = float(os.environ.get("OUTAGE_RATE", "20"))  # a second, when it is over
FAILURES = 4
SLOTS = 2
WINDOW_SECONDS = 3
LATE = 1.2  # what a second may see if two busy cores were late with the one before it
NAME = "inventory-provider"
WORKERS = ("worker-inventory", "worker-inventory#2")

BREAKER = {
    "BREAKER_FAILURES": str(FAILURES),
    "BREAKER_WINDOW_SECONDS": str(WINDOW_SECONDS),
    "BREAKER_FIRST_PROBE_SECONDS": "1",
    "BREAKER_LONGEST_PROBE_SECONDS": "4",
    "BREAKER_PROBES": "2",
    "BREAKER_RELEASE_PER_SECOND": str(RATE),
    "WORKER_SLOTS": str(SLOTS),
}


@pytest.fixture(scope="module")
def lab(new_lab):
    return new_lab("provider", "web", *WORKERS, "relay", env=BREAKER)


@pytest.fixture
def well(lab):
    """Begin with a provider that answers and a breaker that is closed, and leave both so."""
    yield
    lab.provider.clear_faults()
    eventually(lambda: state(lab) in (None, "closed"), what="a closed breaker", within=60)


def breaker(lab):
    found = lab.rows("SELECT * FROM operations_dependency WHERE name = %s", NAME)
    return found[0] if found else None


def state(lab):
    found = breaker(lab)
    return None if found is None else found["state"]


MAKE_USERS = """
    WITH made AS (
        INSERT INTO auth_user (username, password, first_name, last_name, email, is_superuser, is_staff,
            is_active, date_joined)
        SELECT md5(random()::text || n), '!', '', '', '', false, false, true, now()
        FROM generate_series(1, %s) AS n RETURNING id, username
    )
    INSERT INTO authtoken_token (key, created, user_id) SELECT username, now(), id FROM made
    RETURNING key, user_id"""


def ask_many(lab, count):
    """Ask for so many syncs, each of a user of its own, and give the ids."""
    users = lab.rows(MAKE_USERS, count)

    def ask(user):
        lab.provider.set_snapshot(user["user_id"], version=1, items={"arrows": 1})
        headers = {"Authorization": f"Token {user['key']}", "Idempotency-Key": "k-1"}
        answer = client.post("/v1/inventory/sync", json={}, headers=headers)
        assert answer.status_code == 202, answer.text
        return answer.json()["operation_id"]

    client = httpx.Client(base_url=lab.stack.api_url, timeout=30, trust_env=False)
    with client, ThreadPoolExecutor(8) as threads:
        return list(threads.map(ask, users))


def down(lab):
    lab.provider.fail(Fault(status=503))


def trip(lab):
    """Let the breaker open, and wait until it is."""
    down(lab)
    eventually(lambda: state(lab) == "open" or not ask_many(lab, 2), what="an open breaker")


def calls(lab, *, since, ids=None):
    """Give the times at which the provider was called, from a moment on; for these operations only."""
    journal = [entry for entry in lab.provider.journal() if ids is None or entry["operation_id"] in ids]
    arrived = [datetime.fromisoformat(entry["arrived_at"]) for entry in journal]
    return sorted(at for at in arrived if at >= since)


def most_within(times, seconds):
    """Give how many of these times lie together, at most, within so many seconds."""
    most, first = 0, 0
    for last, at in enumerate(times):
        while at - times[first] > timedelta(seconds=seconds):
            first += 1
        most = max(most, last - first + 1)
    return most


def database_now(lab):
    return lab.rows("SELECT clock_timestamp() AS now")[0]["now"]


class TestOutage:
    """C25."""

    @pytest.mark.timeout(int(120 + 2 * SECONDS + OPERATIONS / 5))
    def test_fills_the_dead_letters_and_ends_in_a_storm(self, lab, well):
        """C25 part 1, 2 and 3."""
        down(lab)
        ids = ask_many(lab, OPERATIONS)
        eventually(lambda: state(lab) == "open", what="an open breaker")
        time.sleep(SECONDS)
        asked = len(lab.provider.journal())

        lab.provider.clear_faults()
        eventually(lambda: state(lab) == "releasing", what="the breaker to close", within=60)
        released_at = breaker(lab)["changed_at"]
        ids += ask_many(lab, MORE)
        eventually(
            lambda: (
                lab.rows(
                    "SELECT count(*) AS left FROM operations_operation WHERE id = ANY(%s::uuid[])"
                    " AND status <> 'succeeded'",
                    ids,
                )[0]["left"]
                == 0
            ),
            within=60 + 2 * (OPERATIONS + MORE) / RATE,
            what="everything to be done",
        )

        assert lab.rows("SELECT count(*) AS n FROM operations_deadletter")[0]["n"] == 0
        attempts = [row["attempt"] for row in lab.rows("SELECT attempt FROM operations_operation")]
        assert max(attempts) <= 2
        times = calls(lab, since=released_at)
        seen = {"all": len(times), "second": most_within(times, 1), "five": most_within(times, 5)}
        moves = lab.rows(
            "SELECT count(*) AS n FROM operations_transition WHERE operation_id = ANY(%s::uuid[])", ids
        )[0]["n"]
        print(f"asked while down {asked}, seen {seen}, moves {moves} of {len(ids)}")  # noqa: T201 (with -s)
        assert seen["five"] <= 5 * RATE
        assert seen["second"] <= RATE * LATE
        # accepted, claimed, done; and there and back for those that failed before it opened, and for probes
        assert moves <= 3 * len(ids) + 2 * asked

    def test_opens_again_for_each_process_that_starts(self, lab, well):
        """C32 parts 1 and 2: calls while it is open are the probes', whoever starts."""
        trip(lab)
        before = breaker(lab)
        began = database_now(lab)
        lab.stack.add("worker-inventory#3")
        ids = ask_many(lab, 20)
        time.sleep(3)

        after = breaker(lab)
        assert (after["state"], after["changed_at"]) == ("open", before["changed_at"])
        assert after["generation"] == before["generation"]
        probed = after["probes_failed"] - before["probes_failed"]
        assert len(calls(lab, since=began)) <= probed + 1
        rows = lab.rows("SELECT runs FROM operations_operation WHERE id = ANY(%s::uuid[])", ids)
        assert sum(row["runs"] for row in rows) <= probed + 1

    def test_every_process_finds_out_for_itself(self, lab, well):
        """C32 part 1: as many calls as it takes, and those that were under way."""
        time.sleep(WINDOW_SECONDS + 1)  # what succeeded before counts no more
        down(lab)
        began = database_now(lab)
        opened = (breaker(lab) or {"generation": 1})["generation"]
        ask_many(lab, 30)
        eventually(lambda: breaker(lab) and breaker(lab)["generation"] > opened, what="an open breaker")

        opened_at = breaker(lab)["changed_at"]
        early = [at for at in calls(lab, since=began) if at < opened_at + timedelta(seconds=0.5)]
        assert len(early) <= FAILURES + len(lab.workers) * SLOTS

    def test_is_probed_by_all_at_once_and_always_as_often(self, lab, well):
        """C32 part 3: one probe an interval in all, and the intervals grow."""
        trip(lab)
        began = breaker(lab)["changed_at"] + timedelta(seconds=0.8)  # those under way have arrived
        ask_many(lab, 10)
        time.sleep(9)

        times = calls(lab, since=began)
        pauses = [(later - sooner).total_seconds() for sooner, later in pairwise(times)]
        assert 2 <= len(times) <= 4, times  # at 1 s, 1 + 2, 1 + 2 + 4, and the relay's period each
        assert all(pause > 1.5 for pause in pauses), pauses
        assert pauses == sorted(pauses)

    def test_dies_with_its_prober(self, lab, well):
        """The probe is a lease: whoever holds it may be killed."""
        trip(lab)
        lab.provider.clear_faults()
        lab.provider.fail(Fault(delay_seconds=60))
        prober = eventually(
            lambda: next(
                iter(
                    lab.rows(
                        "SELECT o.claimed_by FROM operations_dependency AS d"
                        " JOIN operations_operation AS o ON o.claim_token = d.probe_token"
                        " WHERE o.status = 'processing'"
                    )
                ),
                None,
            ),
            what="a probe",
        )
        pid = int(prober["claimed_by"].rpartition("/")[2])
        [worker] = [each for each in lab.workers if pid in {child.pid for child in each.children()}]
        failed = breaker(lab)["probes_failed"]

        worker.kill(9, whom="group")
        lab.provider.clear_faults()

        eventually(
            lambda: breaker(lab)["probes_failed"] > failed or state(lab) != "open", what="a lost probe"
        )
        lab.start_again(worker)
        eventually(lambda: state(lab) == "closed", what="a closed breaker", within=60)

    def test_a_slow_success_closes_it(self, lab, well):
        """C32 part 4: an answer to a call from before the trip."""
        user = lab.new_user()
        lab.set_items(user, 1, arrows=1)
        lab.provider.fail(Fault(delay_seconds=4, user_id=user.id))
        slow = user.ask("inventory/sync")
        lab.wait_for(slow, "processing")
        for each in [lab.new_user() for _ in range(FAILURES + 2)]:
            lab.provider.fail(Fault(status=503, user_id=each.id))
            each.ask("inventory/sync")
        eventually(lambda: state(lab) == "open", what="an open breaker")
        generation = breaker(lab)["generation"]
        lab.provider.fail(Fault(status=503))

        assert lab.wait_final(slow)["status"] == "succeeded"

        found = breaker(lab)
        assert (found["state"], found["generation"]) == ("open", generation)


class TestPause:
    def test_is_known_to_all_within_a_relay_period(self, lab, well):
        """And what comes meanwhile waits, and says for what; no row is written."""
        lab.stack.manage("jobs", "pause", "job_type:inventory.sync", "--reason", "they migrate")
        user = lab.new_user()
        lab.set_items(user, 1, arrows=1)
        id = user.ask("inventory/sync")
        time.sleep(3)

        row = lab.operation(id)
        assert (row["status"], row["runs"], row["version"]) == ("queued", 0, 1)
        said = user.client.get(f"/v1/operations/{id}").json()["waiting_for"]
        assert said.startswith("held: paused by cli:")
        assert said.endswith(": they migrate")
        lab.stack.manage("jobs", "resume", "job_type:inventory.sync", "--reason", "done")
        assert lab.wait_final(id, within=10)["status"] == "succeeded"

    def test_lets_pass_no_more_than_its_rate(self, lab, well):
        lab.stack.manage("jobs", "rate", "job_type:inventory.sync", "--to", "120", "--reason", "gently")
        began = database_now(lab)
        ids = ask_many(lab, 12)
        for id in ids:
            assert lab.wait_final(id, within=20)["status"] == "succeeded"
        lab.stack.manage("jobs", "rate", "job_type:inventory.sync", "--to", "0", "--reason", "done")

        times = calls(lab, since=began, ids=ids)
        assert len(times) == 12
        assert (times[-1] - times[0]).total_seconds() > 4.5  # eleven pauses of half a second, and slack
        assert most_within(times, 2) <= 6
