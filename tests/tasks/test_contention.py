"""Two operations want one resource: one works, the other waits, and is woken when its turn comes."""

import uuid
from datetime import timedelta

import pytest
from django.utils import timezone

from operations.models import Operation
from tasks import lock
from tests.factories import earlier, history, make_job, make_operation, work
from tests.threads import aside, meanwhile, others_wait, until

pytestmark = pytest.mark.django_db(transaction=True)

RESOURCE = "inventory:user:7"


@pytest.fixture
def waiter():
    return make_operation(resource=RESOURCE)


@pytest.fixture
def taken():
    """Hold the lock for an operation of another worker, and give its token."""
    token = uuid.uuid4()
    assert lock.take(RESOURCE, token=token, operation_id=uuid.uuid4(), worker="worker-b/7") is None
    return token


class TestWaiting:
    def test_spends_no_attempt_and_says_for_whom(self, waiter, taken, provider):
        waiting = work(waiter)

        assert (waiting.status, waiting.reason) == ("retry_scheduled", "lock_contended")
        assert (waiting.runs, waiting.attempt, waiting.waits) == (0, 0, 1)
        assert waiting.waiting_for.startswith(f"lock {RESOURCE} held by ")
        assert " on worker-b/7 since 20" in waiting.waiting_for
        assert provider.asked == []

    def test_is_one_move_however_often_it_looks(self, waiter, taken):
        for _ in range(3):
            waiting = work(waiter)
            earlier(waiter, "run_at")

        assert waiting.waits == 3
        assert history(waiter) == [("queued", "retry_scheduled", "lock_contended")]

    def test_looks_again_by_itself_within_a_lease(self, waiter, taken, settings):
        waiting = work(waiter)

        assert waiting.run_at - timezone.now() <= timedelta(seconds=settings.LEASE_SECONDS)
        assert waiting.published_at is None

    def test_leaves_the_holders_lock_alone(self, waiter, taken):
        work(waiter)

        assert lock.holder(RESOURCE).token == str(taken)

    def test_does_not_raise_the_fence(self, waiter, taken):
        work(waiter)

        assert not waiter.__class__.objects.filter(runs__gt=0).exists()

    def test_goes_for_an_absent_store_too(self, waiter, locks_away, provider):
        waiting = work(waiter)

        assert (waiting.status, waiting.reason) == ("retry_scheduled", "dependency_unavailable")
        assert (waiting.attempt, waiting.waits) == (0, 1)
        assert "lock store" in waiting.waiting_for
        assert provider.asked == []


class TestWakingUp:
    def test_comes_with_the_holders_finish(self, waiter, provider, broker):
        provider.has(version=1)

        def meet_the_other(run, **values):
            assert work(waiter).reason == "lock_contended"

        job = make_job(call=meet_the_other, resource=RESOURCE)
        work(make_operation(job=job, resource=RESOURCE), job)

        woken = Operation.objects.get(id=waiter.id)
        assert woken.run_at <= timezone.now()
        assert broker.depth() == 1
        assert work(waiter).status == "succeeded"

    @pytest.mark.parametrize("failure", [ValueError("bug"), KeyError("bug")])
    def test_comes_with_the_holders_failure_too(self, waiter, broker, failure):
        def meet_the_other(run, **values):
            work(waiter)
            raise failure

        job = make_job(call=meet_the_other, resource=RESOURCE)
        work(make_operation(job=job, resource=RESOURCE), job)

        assert broker.depth() == 1

    def test_is_not_missed_when_the_lock_is_freed_before_the_wait_is_seen(self, waiter, taken, broker):
        """The holder looks for waiters before we are one: then we have to look for ourselves."""
        with meanwhile(lambda: Operation.objects.select_for_update().get(id=waiter.id)):
            waiting = aside(lambda: work(waiter))
            until(others_wait)  # it has seen the lock taken, and is about to write that it waits
            lock.free(RESOURCE, token=taken)

        assert waiting.result(10).run_at <= timezone.now()
        assert broker.depth() == 1


class TestLeftOver:
    def test_lock_of_a_lost_claim_of_the_same_operation_is_taken_over(self, waiter, provider):
        provider.has(version=1)
        lost = uuid.uuid4()
        lock.take(RESOURCE, token=lost, operation_id=waiter.id, worker="worker-b/7")

        assert work(waiter).status == "succeeded"

        assert lock.holder(RESOURCE) is None

    def test_claim_that_is_not_won_leaves_the_lock_to_its_holder(self, provider):
        """A second delivery must not free the lock of the run that is under way."""
        holders = []

        def deliver_again(run, **values):
            work(operation, job)
            holders.append(lock.holder(RESOURCE).token)

        job = make_job(call=deliver_again, resource=RESOURCE)
        operation = make_operation(job=job, resource=RESOURCE)

        work(operation, job)

        assert holders == [str(Operation.objects.get().claim_token)]
