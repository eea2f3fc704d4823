"""Both kinds of lock keep one table of behaviour; and what sets the one in rows apart."""

import uuid
from datetime import timedelta

import pytest
import redis
from django.conf import settings as django_settings
from django.db import connection
from django.db.models import F
from django.utils import timezone

from operations import jobs
from operations.jobs import UnsafeJob
from operations.models import Operation, ResourceLock
from tasks import lock
from tasks.heartbeat import Heartbeat
from tasks.lock import StoreAway
from tests.factories import WorkPayload, earlier, history, make_claim, make_job, make_operation, work
from tests.threads import meanwhile, together, until

pytestmark = pytest.mark.django_db(transaction=True)

SAFE = "tests:safe:7"


@pytest.fixture(autouse=True)
def safe(monkeypatch):
    """Let there be a job whose locks are kept in rows."""
    job = make_job(name="tests.safe", resource="tests:safe:{user_id}", lock="database")
    monkeypatch.setitem(jobs._registry, job.name, job)
    return job


class Keys:
    """The locks in Redis, seen from its side."""

    resource = "tests:cheap:7"

    def __init__(self):
        self.client = redis.Redis.from_url(django_settings.LOCK_URL)
        self.key = f"{django_settings.KEY_PREFIX}:lock:{self.resource}"

    def seconds_left(self):
        return self.client.pttl(self.key) / 1000

    def shorten(self):
        self.client.pexpire(self.key, 1_000)

    def expire(self):
        self.client.pexpire(self.key, 1)
        until(lambda: not self.client.exists(self.key))

    def forget(self):
        self.client.delete(self.key)


class Rows:
    """The locks in rows, seen from the database's side."""

    resource = SAFE

    def seconds_left(self):
        return (ResourceLock.objects.get().expires_at - timezone.now()).total_seconds()

    def shorten(self):
        ResourceLock.objects.update(expires_at=timezone.now() + timedelta(seconds=1))

    def expire(self):
        ResourceLock.objects.update(expires_at=timezone.now() - timedelta(seconds=1))

    def forget(self):
        ResourceLock.objects.all().delete()


@pytest.fixture(params=[Keys, Rows], ids=["redis", "database"])
def store(request):
    return request.param()


class Worker:
    """Who takes the lock of the store under test, with a token and for an operation."""

    def __init__(self, store, operation_id=None, name="worker-a/1"):
        self.resource, self.name = store.resource, name
        self.token, self.operation_id = uuid.uuid4(), operation_id or uuid.uuid4()

    def take(self):
        return lock.take(self.resource, **self._values())

    def adopt(self):
        return lock.adopt(self.resource, **self._values())

    def renew(self):
        return lock.renew(self.resource, token=self.token)

    def free(self):
        return lock.free(self.resource, token=self.token)

    def holds(self):
        held = lock.holder(self.resource)
        return held is not None and held.token == str(self.token)

    def _values(self):
        return {"token": self.token, "operation_id": self.operation_id, "worker": self.name}


@pytest.fixture
def holder(store):
    worker = Worker(store)
    assert worker.take() is None
    return worker


class TestTake:
    def test_says_who_holds_it_and_since_when(self, store, holder):
        seen = Worker(store).take()

        assert (seen.token, seen.operation_id) == (str(holder.token), str(holder.operation_id))
        assert seen.worker == "worker-a/1"
        assert abs(timezone.datetime.fromisoformat(seen.since) - timezone.now()) < timedelta(seconds=5)
        assert holder.holds()

    def test_sets_an_end(self, store, holder, settings):
        assert 0 < store.seconds_left() <= settings.LOCK_TTL_SECONDS

    def test_lets_one_of_many_through(self, store):
        workers = [Worker(store) for _ in range(8)]

        answers = together(*[worker.take for worker in workers])

        assert answers.count(None) == 1
        assert [worker.holds() for worker in workers] == [answer is None for answer in answers]

    def test_lets_one_of_many_through_when_an_old_one_is_over(self, store, holder):
        store.expire()
        workers = [Worker(store) for _ in range(8)]

        assert together(*[worker.take for worker in workers]).count(None) == 1
        assert not holder.holds()

    def test_takes_none_from_the_same_operation(self, store, holder):
        """A second delivery must not cut into the run that is under way: only a won claim adopts."""
        again = Worker(store, holder.operation_id)

        assert again.take().operation_id == str(holder.operation_id)
        assert holder.holds()

    def test_bears_any_name_of_a_worker(self, store):
        assert Worker(store, name="a|b" * 100).take() is None
        assert lock.holder(store.resource).operation_id


class TestRenew:
    def test_moves_the_end(self, store, holder):
        store.shorten()

        assert holder.renew() is True

        assert store.seconds_left() > 1

    def test_is_refused_to_another(self, store, holder):
        store.shorten()

        assert Worker(store, holder.operation_id).renew() is False

        assert store.seconds_left() <= 1

    def test_does_not_revive_one_that_is_over(self, store, holder):
        store.expire()

        assert holder.renew() is False

        assert lock.holder(store.resource) is None

    def test_does_not_revive_one_that_is_gone(self, store, holder):
        store.forget()

        assert holder.renew() is False

        assert lock.holder(store.resource) is None

    def test_does_not_revive_one_that_another_has_by_now(self, store, holder):
        store.expire()
        other = Worker(store)
        other.take()

        assert holder.renew() is False
        assert other.holds()


class TestFree:
    def test_frees_once(self, store, holder):
        assert [holder.free(), holder.free()] == [True, False]

        assert lock.is_free(store.resource)

    def test_leaves_anothers_alone(self, store, holder):
        assert Worker(store, holder.operation_id).free() is False

        assert holder.holds()

    def test_leaves_the_successors_alone(self, store, holder):
        """Overdue, it finds that another has the lock: that one's must not be let go."""
        store.expire()
        other = Worker(store)
        other.take()

        assert holder.free() is False

        assert other.holds()

    def test_does_not_claim_to_have_freed_one_that_was_over(self, store, holder):
        store.expire()

        assert holder.free() is False


class TestAdopt:
    def test_takes_over_what_a_lost_claim_of_the_same_operation_left(self, store, holder):
        again = Worker(store, holder.operation_id)

        assert again.adopt() is True

        assert again.holds()
        assert (holder.renew(), holder.free()) == (False, False)
        assert again.holds()
        assert store.seconds_left() > 1

    @pytest.mark.parametrize("how", ["expire", "forget"])
    def test_takes_one_that_is_free(self, store, holder, how):
        getattr(store, how)()
        other = Worker(store)

        assert other.adopt() is True

        assert other.holds()

    def test_leaves_anothers_alone(self, store, holder):
        assert Worker(store).adopt() is False

        assert holder.holds()


class TestHolder:
    def test_is_nobody_when_the_lock_is_over(self, store, holder):
        store.expire()

        assert (lock.holder(store.resource), lock.is_free(store.resource)) == (None, True)
        assert list(lock.every()) == []


class TestEvery:
    def test_lists_both_kinds(self):
        for each in (Keys(), Rows()):
            Worker(each).take()

        assert [(kind, resource) for kind, resource, _ in lock.every()] == [
            ("redis", "tests:cheap:7"),
            ("database", SAFE),
        ]


class TestStoreAway:
    def everything(self, store):
        worker = Worker(store)
        return [
            worker.take,
            worker.adopt,
            worker.renew,
            worker.free,
            lambda: lock.holder(worker.resource),
            lambda: list(lock.every()),
        ]

    def test_in_redis_is_said(self, locks_away):
        for ask in self.everything(Keys()):
            with pytest.raises(StoreAway, match="does not answer"):
                ask()
        assert lock.is_free(Keys.resource) is False, "nobody can know"

    def test_in_the_database_is_said(self):
        """One that can't get at the row within the lock timeout knows no more than one without a server."""
        ask = Worker(Rows()).take
        with meanwhile(Worker(Rows()).take), connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '50ms'")
            with pytest.raises(StoreAway, match="does not answer"):
                ask()
        connection.close()

    def test_in_the_database_is_said_by_a_lost_connection(self):
        cursor = connection.cursor()
        with pytest.raises(Exception, match="terminating connection"):
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")

        with pytest.raises(StoreAway, match="does not answer"):
            Worker(Rows()).take()
        connection.close()


class TestSurvival:
    def test_of_the_one_in_rows_when_redis_is_emptied(self, lose_redis):
        cheap, safe = Worker(Keys()), Worker(Rows())
        cheap.take()
        safe.take()

        lose_redis()

        assert (cheap.holds(), safe.holds()) == (False, True)
        assert Worker(Keys()).take() is None
        assert Worker(Rows()).take().token == str(safe.token)


class TestInARun:
    """A job whose lock is in rows, from claim to finish."""

    @pytest.fixture
    def operation(self, safe):
        return make_operation(job=safe, resource=SAFE)

    def test_needs_no_redis(self, operation, safe, locks_away):
        assert work(operation, safe).status == "succeeded"

    def test_holds_the_lock_while_it_works_and_frees_it(self, operation, monkeypatch):
        held = []
        job = make_job(
            name="tests.safe", lock="database", call=lambda run, **values: held.append(lock.holder(SAFE))
        )

        work(operation, job)

        assert [one.operation_id for one in held] == [str(operation.id)]
        assert held[0].token == str(Operation.objects.get().claim_token)
        assert not ResourceLock.objects.exists()

    def test_waits_for_another(self, operation, safe, broker):
        other = Worker(Rows(), name="worker-b/7")
        other.take()

        waiting = work(operation, safe)

        assert (waiting.status, waiting.reason, waiting.attempt) == ("retry_scheduled", "lock_contended", 0)
        assert waiting.waiting_for.startswith(
            f"lock {SAFE} held by {other.operation_id} on worker-b/7 since "
        )
        other.free()
        earlier(operation, "run_at")
        assert work(operation, safe).status == "succeeded"

    def test_takes_over_what_its_lost_claim_left(self, operation, safe):
        left = Worker(Rows(), operation.id)
        left.take()

        assert work(operation, safe).status == "succeeded"

        assert not ResourceLock.objects.exists()

    def test_is_handed_back_when_the_lock_is_lost(self, operation):
        def lose(run, **values):
            ResourceLock.objects.update(token=uuid.uuid4(), operation_id=uuid.uuid4())
            run.heartbeat._renew_lock()

        after = work(operation, make_job(name="tests.safe", call=lose))

        assert (after.status, after.reason, after.attempt) == ("queued", "interrupted", 0)
        assert ResourceLock.objects.exists(), "it is another's"

    def test_is_kept_by_the_heartbeat(self, operation):
        claim = make_claim(operation)
        lock.take(SAFE, token=claim.token, operation_id=operation.id, worker="worker-a/1")
        ResourceLock.objects.update(expires_at=F("expires_at") - timedelta(seconds=20))
        before = ResourceLock.objects.get().expires_at

        heartbeat = Heartbeat(claim)
        heartbeat._renew_lock()

        assert not heartbeat.lock_lost
        assert ResourceLock.objects.get().expires_at > before

    def test_writes_no_move(self, operation, safe):
        work(operation, safe)

        assert history(operation) == [("queued", "processing", ""), ("processing", "succeeded", "")]


class TestDeclared:
    """One resource has one lock, so all jobs that may name it must keep it in the same place."""

    def declare(self, **contract):
        @jobs.job("tests.declared", payload=WorkPayload, **contract)
        def handle(run, answer, **values):
            """Do nothing."""

    @pytest.fixture(autouse=True)
    def undeclared(self, monkeypatch):
        monkeypatch.setattr(jobs, "_registry", dict(jobs._registry))

    @pytest.mark.parametrize(
        "resource",
        [
            "tests:safe:{user_id}",
            "tests:safe:{user_id}:more",
            "tests:safe:of:{user_id}",
            "tests:{user_id}",
            "{user_id}",
        ],
    )
    def test_two_kinds_for_one_resource_are_refused(self, resource):
        with pytest.raises(UnsafeJob, match="another kind of lock"):
            self.declare(resource=resource)

    @pytest.mark.parametrize("resource", ["", "tests:safely:{user_id}", "other:tests:safe:{user_id}"])
    def test_two_kinds_for_two_resources_are_not(self, resource):
        self.declare(resource=resource)

    def test_one_kind_is_not(self):
        self.declare(resource="tests:safe:{user_id}", lock="database")

        assert jobs.lock_of("tests:safe:9") == "database"
        assert jobs.lock_of("tests:cheap:9") == "redis"

    def test_a_lock_of_nothing_is_refused(self):
        """It would be the lock of everything: every resource begins with nothing."""
        with pytest.raises(UnsafeJob, match="needs a resource"):
            self.declare(lock="database")

    def test_a_kind_that_nobody_knows_is_refused(self):
        with pytest.raises(UnsafeJob, match="'redis' or 'database', not 'file'"):
            self.declare(resource="tests:other:{user_id}", lock="file")
