"""One holder at a time: taken, kept and freed by token, and never without an end."""

import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from django.conf import settings as django_settings

from tasks import lock
from tasks.lock import StoreAway

RESOURCE = "inventory:user:7"


@pytest.fixture(autouse=True)
def forgotten_afterwards(lose_redis):
    yield
    lose_redis()


@pytest.fixture
def store():
    with redis.Redis.from_url(django_settings.LOCK_URL) as client:
        yield client


def key():
    return f"{django_settings.KEY_PREFIX}:lock:{RESOURCE}"


def take(token=None, operation_id=None, worker="worker-a/1"):
    return lock.take(
        RESOURCE,
        token=uuid.uuid4() if token is None else token,
        operation_id=uuid.uuid4() if operation_id is None else operation_id,
        worker=worker,
    )


class TestTake:
    def test_takes_a_free_one(self):
        token, operation_id = uuid.uuid4(), uuid.uuid4()

        assert take(token, operation_id) is None

        holder = lock.holder(RESOURCE)
        assert (holder.token, holder.operation_id) == (str(token), str(operation_id))
        assert holder.worker == "worker-a/1"

    def test_says_who_holds_it(self):
        first = uuid.uuid4()
        take(operation_id=first)

        holder = take(worker="worker-b/1")

        assert holder.operation_id == str(first)
        assert str(holder).startswith(f"{first} on worker-a/1 since 20")

    def test_lets_one_of_many_through(self):
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: take(), range(8)))

        assert answers.count(None) == 1

    def test_always_sets_an_end(self, store, settings):
        take()

        assert 0 < store.pttl(key()) <= settings.LOCK_TTL_SECONDS * 1000

    def test_keeps_a_worker_with_a_bar_in_its_name(self):
        take(worker="a|b")

        assert lock.holder(RESOURCE).operation_id

    def test_says_that_nobody_can_know(self, locks_away):
        with pytest.raises(StoreAway):
            take()


class TestRenew:
    def test_moves_the_end(self, store, settings):
        token = uuid.uuid4()
        take(token)
        store.pexpire(key(), 500)

        assert lock.renew(RESOURCE, token=token) is True

        assert store.pttl(key()) > 500

    def test_is_refused_to_another_token(self, store):
        take()
        store.pexpire(key(), 500)

        assert lock.renew(RESOURCE, token=uuid.uuid4()) is False

        assert store.pttl(key()) <= 500

    def test_does_not_revive_one_that_is_gone(self, store):
        assert lock.renew(RESOURCE, token=uuid.uuid4()) is False

        assert not store.exists(key())

    def test_says_that_nobody_can_know(self, locks_away):
        with pytest.raises(StoreAway):
            lock.renew(RESOURCE, token=uuid.uuid4())


class TestFree:
    def test_frees_ones_own(self):
        token = uuid.uuid4()
        take(token)

        assert lock.free(RESOURCE, token=token) is True

        assert lock.holder(RESOURCE) is None

    def test_leaves_anothers_alone(self):
        take()

        assert lock.free(RESOURCE, token=uuid.uuid4()) is False

        assert lock.holder(RESOURCE) is not None

    def test_may_be_done_twice(self):
        token = uuid.uuid4()
        take(token)

        assert [lock.free(RESOURCE, token=token) for _ in range(2)] == [True, False]

    def test_says_that_nobody_can_know(self, locks_away):
        with pytest.raises(StoreAway):
            lock.free(RESOURCE, token=uuid.uuid4())


class TestAdopt:
    def adopt(self, token, operation_id):
        return lock.adopt(RESOURCE, token=token, operation_id=operation_id, worker="worker-b/1")

    def test_takes_over_what_a_lost_claim_of_the_same_operation_left(self, store):
        operation_id, old, new = uuid.uuid4(), uuid.uuid4(), uuid.uuid4()
        take(old, operation_id)

        assert self.adopt(new, operation_id) is True

        assert lock.holder(RESOURCE).token == str(new)
        assert lock.renew(RESOURCE, token=old) is False
        assert store.pttl(key()) > 0

    def test_takes_a_free_one(self, store):
        token = uuid.uuid4()

        assert self.adopt(token, uuid.uuid4()) is True

        assert lock.holder(RESOURCE).token == str(token)
        assert store.pttl(key()) > 0

    def test_leaves_anothers_alone(self):
        other = uuid.uuid4()
        take(operation_id=other)

        assert self.adopt(uuid.uuid4(), uuid.uuid4()) is False

        assert lock.holder(RESOURCE).operation_id == str(other)


class TestHolder:
    def test_is_nobody(self):
        assert lock.holder(RESOURCE) is None

    def test_cannot_be_known(self, locks_away):
        with pytest.raises(StoreAway):
            lock.holder(RESOURCE)
