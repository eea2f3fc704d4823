"""A paused job type with 100,000 operations: the pause writes none of them, and the relay does not notice."""

import time
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models.functions import Now

from operations import controls
from operations.models import Hold, Operation
from tasks import gauges, relay, releases
from tests.factories import make_operation, make_user

pytestmark = pytest.mark.django_db(transaction=True)

MANY = 100_000
ROUND_SECONDS = 0.05  # a relay period is two seconds; a scan of the backlog takes longer than this
FILL = """
    INSERT INTO operations_operation
        (id, job_type, schema_version, owner_id, source, status, reason, step, runs, attempt, max_attempts,
         interruptions, waits, replays, run_at, deadline_at, resource, waiting_for, idempotency_key,
         request_id, correlation_id, claimed_by, published_at, created_at, version, depth)
    SELECT gen_random_uuid(), 'inventory.sync', 1, %s, 'api', 'queued', 'accepted', '', 0, 0, 5, 0, 0, 0,
        now() - interval '1 hour', now() + interval '1 day', '', '', '', '', '', '',
        CASE WHEN n %% 2 = 0 THEN now() - interval '1 hour' END, now(), 1, 0
    FROM generate_series(1, %s) AS n"""
DUTIES = [
    duty for duty in relay.DUTIES if duty is not gauges.sample
]  # that one counts all there is, on purpose


@pytest.fixture
def backlog():
    with connection.cursor() as cursor:
        cursor.execute(FILL, [make_user().pk, MANY])
        cursor.execute("ANALYZE operations_operation")


def order(**wanted):
    controls.change(controls.read("job_type:inventory.sync"), actor="sari", reason="they migrate", **wanted)


def written():
    """Give the number of the transaction that wrote a row last."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT max(xmin::text::bigint), count(*) FROM operations_operation")
        return cursor.fetchone()


def seconds_a_round():
    """Give the time of the quickest of a few rounds: what the work takes, not what else the machine does."""
    for duty in DUTIES:  # prepared
        duty()
    return min(seconds_of(lambda: [duty() for duty in DUTIES], gives=[0] * len(DUTIES)) for _ in range(20))


def seconds_of(work, *, gives):
    began = time.perf_counter()
    assert work() == gives
    return time.perf_counter() - began


class TestPause:
    def test_writes_no_row_and_costs_the_relay_nothing(self, backlog, monkeypatch):
        monkeypatch.setattr(releases.publisher, "depth", lambda queue: int(queue.startswith("epoch.")))
        before = written()

        order(paused=True)
        seconds = seconds_a_round()

        assert written() == before
        assert seconds < ROUND_SECONDS
        print(f"a round of the relay beside {MANY} held operations: {seconds * 1000:.1f} ms")  # noqa: T201

    def test_of_one_type_leaves_the_others_their_turn(self, backlog, monkeypatch):
        other = make_operation(published_at=None, job_type="tests.work")
        monkeypatch.setattr(relay, "publish", lambda operation: True)
        order(paused=True)

        assert relay.publish_due() == 1
        assert Operation.objects.get(id=other.id).published_at is not None

    def test_that_ends_in_a_rate_costs_no_more_than_its_portion(self, backlog, monkeypatch):
        """The oldest are found in the index, not among all."""
        monkeypatch.setattr(releases, "publish", lambda operation, **headers: True)
        monkeypatch.setattr(releases.publisher, "depth", lambda queue: 0)
        order(rate_per_minute=600)
        releases.release()
        seconds = []
        for _ in range(5):
            Hold.objects.update(paced_until=Now() - timedelta(seconds=0.25))  # two and a half of ten a second
            seconds.append(seconds_of(releases.release, gives=2))

        assert min(seconds) < ROUND_SECONDS
