"""A claim that lives while its run works: the lease and the lock, each kept and judged by itself."""

import uuid

import pytest
from django.db import connections
from django.utils import timezone

from operations.models import DeadLetter, Operation
from tasks import lock
from tasks.heartbeat import Heartbeat
from tests.factories import earlier, make_claim, make_job, make_operation, take_back, work
from tests.threads import meanwhile, others_wait, until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def quick_beats(settings):
    settings.HEARTBEAT_SECONDS = 0.2


@pytest.fixture
def claim():
    claim = make_claim()
    take_lock(claim)
    return claim


def take_lock(claim):
    lock.take(claim.operation.resource, token=claim.token, operation_id=claim.operation.id, worker="a/1")


def lease_of(claim):
    return Operation.objects.get(id=claim.operation.id).lease_expires_at


class TestBeat:
    def test_moves_the_end_of_the_lease(self, claim):
        with Heartbeat(claim) as heartbeat:
            until(lambda: lease_of(claim) > claim.operation.lease_expires_at)

        assert (heartbeat.claim_lost, heartbeat.lock_lost) == (False, False)

    def test_moves_the_end_of_the_lock(self, claim, settings):
        settings.LOCK_TTL_SECONDS = 0.5

        with Heartbeat(claim) as heartbeat:
            until(lambda: lease_of(claim) > claim.operation.lease_expires_at)
            later = lease_of(claim)
            until(lambda: lease_of(claim) > later)  # two beats: by now the first 0.5 s are nearly over
            until(lambda: lease_of(claim) > later)

        assert heartbeat.lock_lost is False

    def test_notices_a_lost_lease(self, claim):
        with Heartbeat(claim) as heartbeat:
            Operation.objects.update(claim_token=uuid.uuid4())
            until(lambda: heartbeat.claim_lost)

        assert heartbeat.lock_lost is False

    def test_revives_a_lease_that_nobody_has_taken_back(self, claim):
        """It seems to be over when the database's clock was set forward."""
        earlier(claim.operation, "lease_expires_at")

        with Heartbeat(claim) as heartbeat:
            until(lambda: lease_of(claim) > timezone.now())

        assert heartbeat.claim_lost is False

    def test_does_not_revive_a_lease_that_was_taken_back(self, claim):
        earlier(claim.operation, "lease_expires_at")
        take_back()

        with Heartbeat(claim) as heartbeat:
            until(lambda: heartbeat.claim_lost)

    def test_notices_a_lost_lock_and_keeps_the_lease(self, claim):
        with Heartbeat(claim) as heartbeat:
            lock.free(claim.operation.resource, token=claim.token)
            until(lambda: heartbeat.lock_lost)

        assert heartbeat.claim_lost is False

    def test_takes_a_lock_that_cannot_be_renewed_for_lost(self, claim, locks_away):
        with Heartbeat(claim) as heartbeat:
            until(lambda: heartbeat.lock_lost)

        assert heartbeat.claim_lost is False

    def test_asks_for_no_lock_without_a_resource(self):
        claim = make_claim(resource="")

        with Heartbeat(claim) as heartbeat:
            until(lambda: lease_of(claim) > claim.operation.lease_expires_at)

        assert heartbeat.lock_lost is False

    def test_takes_a_row_that_its_own_finish_holds_for_alive(self, claim, monkeypatch):
        impatient = connections.settings["default"]["OPTIONS"]
        monkeypatch.setitem(impatient, "options", "-c lock_timeout=50")

        with (
            meanwhile(lambda: Operation.objects.select_for_update().get(id=claim.operation.id)),
            Heartbeat(claim) as heartbeat,
        ):
            until(others_wait)
            until(lambda: not others_wait())  # that beat has given up; the next ones do as well
            until(others_wait)

        assert heartbeat.claim_lost is False


class TestRunThatLosesItsHold:
    def test_is_given_back_when_the_lock_is_lost(self):
        def lose(run, **values):
            lock.free(run.claim.operation.resource, token=run.claim.token)
            until(lambda: run.heartbeat.lock_lost)

        handled = []
        job = make_job(lambda *args, **values: handled.append(1), call=lose, resource="tests:of:{user_id}")

        operation = work(make_operation(job=job), job)

        assert (operation.status, operation.reason) == ("queued", "interrupted")
        assert (operation.attempt, operation.runs) == (0, 1)
        assert handled == []

    def test_tells_of_a_lost_lock_beside_the_error_it_ended_with(self, admin_client):
        def lose(run, **values):
            lock.free(run.claim.operation.resource, token=run.claim.token)
            until(lambda: run.heartbeat.lock_lost)
            raise ValueError("its own")

        job = make_job(call=lose, resource="tests:of:{user_id}")

        operation = work(make_operation(job=job), job)

        assert (operation.data.error["class"], operation.data.error["lock_lost"]) == ("ValueError", True)
        letter = DeadLetter.objects.get()
        assert (letter.error_class, letter.lock_lost) == ("ValueError", True)
        page = admin_client.get(f"/admin/operations/deadletter/{letter.id}/change/").content.decode()
        assert "lost before that error" in page

    def test_does_not_tell_of_a_lock_it_has_kept(self):
        def fail(run, **values):
            raise ValueError("its own")

        job = make_job(call=fail, resource="tests:of:{user_id}")

        assert "lock_lost" not in work(make_operation(job=job), job).data.error
        assert DeadLetter.objects.get().lock_lost is False

    def test_changes_nothing_when_the_claim_is_lost(self):
        def lose(run, **values):
            Operation.objects.update(claim_token=uuid.uuid4())
            until(lambda: run.heartbeat.claim_lost)
            run.check()

        job = make_job(call=lose, resource="tests:of:{user_id}")

        operation = work(make_operation(job=job), job)

        assert (operation.status, operation.version) == ("processing", 2)
