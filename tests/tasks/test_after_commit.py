"""What a move owes the outside: each part by itself, twice if need be, and remembered until it is done."""

import uuid

import pytest
from django.db.models.functions import Now
from django.utils import timezone

from inventory.api import view
from inventory.models import InventoryItem
from operations.models import AfterCommit, Operation
from tasks import after_commit, lock
from tasks.after_commit import Owed
from tests.factories import make_operation, make_user, work

pytestmark = pytest.mark.django_db(transaction=True)

RESOURCE = "inventory:user:7"


@pytest.fixture
def token():
    """The token of a claim whose run is over, and which still holds the lock."""
    token = uuid.uuid4()
    lock.take(RESOURCE, token=token, operation_id=uuid.uuid4(), worker="worker-a/1")
    return token


@pytest.fixture
def waiter():
    return make_operation(status="retry_scheduled", reason="lock_contended", resource=RESOURCE)


def owe(token=None, invalidate=()):
    row = AfterCommit.objects.create(
        operation_id=uuid.uuid4(),
        invalidate=list(invalidate),
        resource=RESOURCE,
        claim_token=token,
        run_at=Now(),
    )
    return Owed(row.id, invalidate, RESOURCE, token)


class TestPerform:
    def test_does_every_part(self, token, waiter, broker):
        user = make_user()
        view.get(user.pk)
        InventoryItem.objects.create(user=user, sku="sword", quantity=1, version=1)

        assert after_commit.perform(owe(token, [f"inventory:view:{user.pk}"])) is True

        assert view.get(user.pk)["items"] == [{"sku": "sword", "quantity": 1}]
        assert lock.holder(RESOURCE) is None
        assert broker.depth() == 1

    def test_may_be_done_twice(self, token):
        owed = owe(token, ["inventory:view:7"])

        assert [after_commit.perform(owed) for _ in range(2)] == [True, True]

    def test_leaves_the_lock_of_a_newer_claim_alone(self, token):
        after_commit.perform(owe(uuid.uuid4()))

        assert lock.holder(RESOURCE).token == str(token)

    def test_wakes_though_no_claim_was_ever_made(self, waiter, broker):
        assert after_commit.perform(owe(token=None)) is True

        assert broker.depth() == 1

    def test_goes_on_without_the_cache_and_is_remembered(self, token, waiter, broker, cache_away):
        assert after_commit.perform(owe(token, ["inventory:view:7"])) is False

        assert lock.holder(RESOURCE) is None
        assert broker.depth() == 1
        assert AfterCommit.objects.count() == 1

    def test_goes_on_without_the_lock_store_and_is_remembered(self, waiter, broker, locks_away):
        user = make_user()
        view.get(user.pk)
        InventoryItem.objects.create(user=user, sku="sword", quantity=1, version=1)

        assert after_commit.perform(owe(uuid.uuid4(), [f"inventory:view:{user.pk}"])) is False

        assert len(view.get(user.pk)["items"]) == 1
        assert broker.depth() == 1
        assert AfterCommit.objects.count() == 1

    def test_is_done_without_the_broker_because_the_row_says_what_is_unsent(self, token, waiter, broker_away):
        assert after_commit.perform(owe(token)) is True

        woken = Operation.objects.get(id=waiter.id)
        assert (woken.published_at, woken.run_at <= timezone.now()) == (None, True)

    def test_looks_for_no_waiter_when_nobody_asked_for_the_lock(self, token, django_assert_num_queries):
        owed = owe(token)._replace(in_line=False)

        with django_assert_num_queries(0):
            assert after_commit.perform(owed) is True

    def test_looks_for_a_waiter_when_somebody_asked_for_the_lock(self, token, waiter, broker):
        lock.take(RESOURCE, token=uuid.uuid4(), operation_id=waiter.id, worker="worker-b/1")

        assert after_commit.perform(owe(token)._replace(in_line=False)) is True

        assert broker.depth() == 1


class TestWake:
    def test_publishes_the_oldest_waiter_only(self, waiter, broker):
        make_operation(status="retry_scheduled", reason="lock_contended", resource=RESOURCE)

        after_commit.wake(RESOURCE)

        [[operation_id]] = [broker.deliver().payload[0]]
        assert operation_id == str(waiter.id)
        assert broker.depth() == 0

    def test_publishes_nobody_when_nobody_waits(self, broker):
        after_commit.wake(RESOURCE)

        assert broker.depth() == 0


class TestAfterARun:
    def test_nothing_is_owed(self, provider):
        provider.has(version=1)

        operation = work(make_operation())

        after_commit.forget_settled()
        assert lock.holder(operation.resource) is None
        assert not AfterCommit.objects.exists()

    def test_what_could_not_be_done_is_owed_and_the_answer_is_still_success(self, provider, cache_away):
        provider.has(version=1)

        operation = work(make_operation())

        assert operation.status == "succeeded"
        owed = AfterCommit.objects.get()
        assert owed.invalidate == [f"inventory:view:{operation.owner_id}"]
        assert (owed.resource, owed.claim_token) == (operation.resource, operation.claim_token)
