"""C29: what is tried again, when, and how the tries of many are spread."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from deploy.local.provider_store import Fault
from tests.faults.lab import eventually
from tests.faults.lines import LINES

pytestmark = [pytest.mark.process, pytest.mark.embedded]

ASKED_SECONDS = 7
LONGEST_SECONDS = 3_600  # that another side is granted
# inventory.sync pauses 5, 15, 45 and 120 s, and up to as much again.
FIRST_PAUSE = (5.0, 10.0)
LAST_PAUSE = (120.0, 240.0)
MANY = 200
SLACK_SECONDS = 0.1  # between the due time and the transition that tells of the move


# Operations of as many users, which the relay publishes. Asking over HTTP would take longer than failing.
ASK = """
    WITH owners AS (
        INSERT INTO auth_user (username, password, first_name, last_name, email, is_superuser, is_staff,
            is_active, date_joined)
        SELECT gen_random_uuid(), '!', '', '', '', false, false, true, now()
        FROM generate_series(1, %s) RETURNING id
    ), asked AS (
        INSERT INTO operations_operation
            (id, job_type, schema_version, owner_id, source, status, reason, step, runs, attempt,
             max_attempts, interruptions, waits, replays, deadline_at, resource, waiting_for, idempotency_key,
             request_id, correlation_id, claimed_by, version, depth)
        SELECT gen_random_uuid(), 'inventory.sync', 1, id, 'api', 'queued', 'accepted', '', 0, 0, 5, 0, 0, 0,
            now() + interval '1 hour', 'inventory:user:' || id, '', '', '', '', '', 1, 0
        FROM owners RETURNING id, owner_id
    )
    INSERT INTO operations_operationdata (operation_id, payload)
    SELECT id, jsonb_build_object('user_id', owner_id) FROM asked RETURNING operation_id AS id"""
FORTY_NINE_DONE = """
    UPDATE operations_operation SET attempt = 49, runs = 49, max_attempts = 60, run_at = clock_timestamp(),
        published_at = NULL
    WHERE id = %s"""


@pytest.fixture(scope="module")
def lab(new_lab):
    env = {**LINES, "BREAKER_FAILURES": "1000000"}  # or two hundred failures would be held, not spread
    return new_lab("provider", "web", "worker-inventory", "worker-inventory#2", "relay", env=env)


@pytest.fixture(scope="module")
def later():
    """Give a moment with no fraction of a second, which a date in a header can't have."""
    return (datetime.now(UTC) + timedelta(seconds=ASKED_SECONDS + 1)).replace(microsecond=0)


@pytest.fixture(scope="module")
def waiting(lab, later):
    """Let three be asked to come back, in two forms and not at all, and empty the broker while they wait."""
    ids = {
        "seconds": fail(lab, status=429, retry_after=str(ASKED_SECONDS)),
        "date": fail(lab, status=429, retry_after=format_datetime(later, usegmt=True)),
        "nothing": fail(lab, status=503),
    }
    for id in ids.values():
        lab.wait_for(id, "retry_scheduled")
    lab.flush_broker()
    return ids


def fail(lab, *, times=1, **fault):
    """Ask for an operation whose first answers are spoilt."""
    user = lab.new_user()
    lab.set_items(user, 1, sword=1)
    lab.provider.fail(Fault(user_id=user.id, times=times, **fault))
    return user.ask("inventory/sync")


def asked_at(lab, id):
    """Give when the provider was asked on behalf of an operation."""
    return [datetime.fromisoformat(entry["arrived_at"]) for entry in lab.provider.journal(operation_id=id)]


def pause(lab, id):
    """Give the seconds from the move that scheduled the next attempt to its time."""
    [move] = [move for move in lab.moves(id) if move["to_status"] == "retry_scheduled"]
    return (lab.operation(id)["run_at"] - move["at"]).total_seconds()


def due(lab, ids):
    """Give when those of the operations are due that wait for another attempt."""
    waiting = "SELECT run_at FROM operations_operation WHERE id = ANY(%s) AND status = 'retry_scheduled'"
    return [row["run_at"] for row in lab.rows(waiting, ids)]


class TestPermanent:
    @pytest.mark.parametrize(
        ("status", "reason"), [(400, "invalid_input"), (404, "not_found"), (422, "invalid_input")]
    )
    def test_is_tried_through_the_whole_schedule(self, lab, status, reason):
        """Part 1."""
        id = fail(lab, times=None, status=status)

        operation = lab.wait_final(id)

        assert (operation["status"], operation["reason"]) == ("failed_permanent", reason)
        assert (operation["attempt"], len(asked_at(lab, id))) == (1, 1)


class TestRetryAfter:
    def test_in_seconds_is_not_heard(self, lab, waiting):
        """Part 2."""
        operation = lab.wait_final(waiting["seconds"])

        first, second = asked_at(lab, waiting["seconds"])
        assert (second - first).total_seconds() >= ASKED_SECONDS
        assert (operation["status"], operation["attempt"]) == ("succeeded", 2)

    def test_as_a_date_is_not_heard(self, lab, waiting, later):
        """Part 3."""
        operation = lab.wait_final(waiting["date"])

        assert asked_at(lab, waiting["date"])[1] >= later
        assert (operation["status"], operation["attempt"]) == ("succeeded", 2)

    @pytest.mark.parametrize("form", ["seconds", "date"])
    def test_keeps_an_operation_for_a_year(self, lab, form):
        """Part 4."""
        year = timedelta(days=365)
        date = format_datetime(datetime.now(UTC) + year, usegmt=True)
        id = fail(lab, status=429, retry_after={"seconds": f"{year.total_seconds():.0f}", "date": date}[form])

        lab.wait_for(id, "retry_scheduled")

        assert LONGEST_SECONDS - SLACK_SECONDS <= pause(lab, id) <= LONGEST_SECONDS + SLACK_SECONDS

    @pytest.mark.parametrize(
        "garbage", ["soon", "-7", "7.5", "99 bottles", "Thu, 01 Jan 99999999999999999999"]
    )
    def test_that_is_garbage_upsets_the_schedule(self, lab, garbage):
        """Part 5."""
        id = fail(lab, status=429, retry_after=garbage)

        operation = lab.wait_for(id, "retry_scheduled")

        assert operation["reason"] == "rate_limited"
        assert FIRST_PAUSE[0] - SLACK_SECONDS <= pause(lab, id) <= FIRST_PAUSE[1] + SLACK_SECONDS


class TestEmptiedBroker:
    def test_forgets_who_waits_for_another_attempt(self, lab, waiting):
        """Part 8: the due time is in the database. It stands before the spread, which spoils all answers."""
        for id in waiting.values():
            operation = lab.wait_final(id)
            assert (operation["status"], operation["runs"]) == ("succeeded", 2)


class TestSpread:
    def test_what_failed_together_comes_back_together(self, lab):
        """Part 6: two hundred fail as fast as they can be run."""
        lab.provider.fail(Fault(status=503))
        try:
            ids = [row["id"] for row in lab.rows(ASK, MANY)]
            eventually(lambda: len(due(lab, ids)) == MANY, what="two hundred failures")
        finally:
            lab.provider.clear_faults()

        seconds = Counter(int(run_at.timestamp()) for run_at in due(lab, ids))
        assert max(seconds.values()) <= 0.3 * MANY

    def test_the_fiftieth_pause_is_beyond_all_bounds(self, lab):
        """Part 7."""
        id = fail(lab, times=None, status=503)
        lab.wait_for(id, "retry_scheduled")
        lab.database.execute(FORTY_NINE_DONE, [id])

        operation = lab.wait_for(id, "retry_scheduled", run=50)

        last = lab.moves(id)[-1]
        assert operation["attempt"] == 50
        assert LAST_PAUSE[0] - SLACK_SECONDS <= (operation["run_at"] - last["at"]).total_seconds()
        assert (operation["run_at"] - last["at"]).total_seconds() <= LAST_PAUSE[1] + SLACK_SECONDS
