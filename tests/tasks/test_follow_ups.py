"""Operations that follow from another: accepted with its finish, all or none, and each once."""

import uuid
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from django.db import connection, transaction
from rest_framework import serializers

from operations import accept, jobs
from operations.jobs import OwnerID, Payload
from operations.models import IdempotencyRecord, Operation, Transition
from tasks import relay
from tasks.handle import OldNews
from tasks.retry import CallFailed
from tests.factories import earlier, make_job, make_operation, make_request, work
from tests.threads import aside

pytestmark = pytest.mark.django_db(transaction=True)

AFTER = "tests.after"
RESOURCE = "tests:of:{user_id}"
DEADLOCK = "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40P01'; END $$"
GONE = "SELECT pg_terminate_backend(pg_backend_pid())"


class Grant(Payload):
    user_id = OwnerID()
    order_id = serializers.CharField(max_length=100)


class Thing(Payload):
    id = serializers.UUIDField()
    at = serializers.DateTimeField()
    price = serializers.DecimalField(max_digits=9, decimal_places=2)


@pytest.fixture(autouse=True)
def after(monkeypatch):
    """Let there be a job to follow."""
    job = make_job(name=AFTER, payload=Grant)
    monkeypatch.setitem(jobs._registry, AFTER, job)
    return job


def asking(*wanted, where="call", then=lambda: None, **contract):
    """Declare a job that asks for follow-ups in its call or its handler, and then does as the test says."""

    def ask(run, *answer, **values):
        for job_type, payload in wanted:
            run.follow_up(job_type, payload)
        then()

    does = {"call": ask} if where == "call" else {"handler": ask}
    return make_job(resource=RESOURCE, **does | contract)


def grant(order_id="1"):
    return AFTER, {"order_id": order_id}


def followers():
    return Operation.objects.select_related("data").exclude(parent=None).order_by("id")


def orders():
    return [follower.data.payload["order_id"] for follower in followers()]


def run_sql(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)


def raiser(error):
    def fail(*args):
        raise error

    return fail


def once(act):
    acts = [act]
    return lambda: acts.pop()() if acts else None


class TestFollowUp:
    @pytest.mark.parametrize("where", ["call", "handler"])
    def test_is_accepted_with_the_finish(self, where):
        job = asking(grant(), where=where)
        parent = make_operation(job=job, request_id="r-1", correlation_id="c-1")

        assert work(parent, job).status == "succeeded"

        [follower] = followers()
        assert (follower.job_type, follower.status, follower.reason) == (AFTER, "queued", "accepted")
        assert follower.data.payload == {"order_id": "1", "user_id": parent.owner_id}
        assert (follower.parent, follower.depth, follower.source) == (parent.id, 1, "follow_up")
        assert (follower.owner_id, follower.request_id, follower.correlation_id) == (
            parent.owner_id,
            "r-1",
            "c-1",
        )
        [move] = Transition.objects.filter(operation_id=follower.id)
        assert (move.from_status, move.to_status, move.actor) == ("", "queued", f"operation:{parent.id}")

    def test_is_published_after_the_commit(self, broker, monkeypatch):
        committed = []
        publish = accept.publish

        def look_from_outside(operation):
            committed.append(aside(lambda: Operation.objects.filter(id=operation.id).exists()).result(10))
            return publish(operation)

        monkeypatch.setattr(accept, "publish", look_from_outside)
        job = asking(grant())

        work(make_operation(job=job), job)

        assert committed == [True]
        assert [message["headers"]["argsrepr"] for message in broker.messages(AFTER)] == [
            f"('{followers()[0].id}',)"
        ]

    def test_needs_no_broker(self, broker_away):
        job = asking(grant())

        assert work(make_operation(job=job), job).status == "succeeded"

        assert followers()[0].published_at is None, "the relay is to publish it"

    def test_does_what_it_is_asked_for(self, after):
        job = asking(grant())
        work(make_operation(job=job), job)

        assert work(followers()[0], after).status == "succeeded"

    def test_sends_values_as_a_client_would(self, monkeypatch):
        """A job has its payload as Python values, and hands them on."""
        seen = []
        thing = make_job(lambda run, answer, **values: seen.append(values), name="tests.thing", payload=Thing)
        monkeypatch.setitem(jobs._registry, thing.name, thing)
        values = {
            "id": uuid.uuid4(),
            "at": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
            "price": Decimal("1.10"),
        }
        job = asking((thing.name, values))

        assert work(make_operation(job=job), job).status == "succeeded"
        work(followers()[0], thing)

        assert seen == [values]


class TestOnce:
    def test_for_the_same_payload(self):
        job = asking(grant("1"), grant("2"), (AFTER, {"order_id": "1"}))

        work(make_operation(job=job), job)

        assert orders() == ["1", "2"]

    def test_in_call_and_handler_together(self):
        def ask(run, *answer, **values):
            run.follow_up(*grant())

        job = make_job(ask, call=ask)

        work(make_operation(job=job), job)

        assert orders() == ["1"]

    def test_for_each_operation(self):
        job = asking(grant())

        work(make_operation(job=job), job)
        work(make_operation(job=job), job)

        assert orders() == ["1", "1"]

    def test_for_each_job(self, after, monkeypatch):
        other = make_job(name="tests.later", payload=Grant)
        monkeypatch.setitem(jobs._registry, other.name, other)
        job = asking(grant(), (other.name, {"order_id": "1"}))

        work(make_operation(job=job), job)

        assert [follower.job_type for follower in followers()] == [AFTER, "tests.later"]

    @pytest.mark.parametrize("sql", [DEADLOCK, GONE], ids=["deadlock", "lost connection"])
    @pytest.mark.parametrize("where", ["call", "handler"])
    def test_however_often_the_finish_is_repeated(self, where, sql):
        trouble = once(lambda: run_sql(sql))
        job = (
            asking(grant(), handler=lambda *args, **values: trouble())
            if where == "call"
            else asking(grant(), where="handler", then=trouble)
        )

        assert work(make_operation(job=job), job).status == "succeeded"

        assert orders() == ["1"]
        assert IdempotencyRecord.objects.count() == 1

    def test_when_the_answer_to_the_commit_was_lost(self, broker):
        job = asking(grant(), where="handler", then=lambda: transaction.on_commit(lambda: run_sql(GONE)))

        assert work(make_operation(job=job), job).status == "succeeded"

        [follower] = followers()
        # Nobody could publish it: the callback was lost with the connection. The relay misses its message.
        assert broker.depth(AFTER) == 0
        earlier(follower, "published_at")
        assert relay.republish_lost() == 1
        assert broker.depth(AFTER) == 1

    def test_as_the_last_try_of_a_handler_asked_for(self):
        """What it read has changed when it is repeated, and so has what follows."""
        tries = []

        def handle(run, answer, **values):
            tries.append(1)
            run.follow_up(*grant(str(len(tries))))
            if len(tries) == 1:
                run_sql(DEADLOCK)

        job = make_job(handle)

        work(make_operation(job=job), job)

        assert orders() == ["2"]

    def test_after_a_run_that_failed(self):
        job = asking(grant(), handler=lambda *args, **values: fail())
        fail = once(raiser(CallFailed("timeout", "…")))
        operation = make_operation(job=job)

        assert work(operation, job).status == "retry_scheduled"
        assert orders() == []
        earlier(operation, "run_at")
        assert work(operation, job).status == "succeeded"

        assert orders() == ["1"]


class TestRolledBack:
    @pytest.mark.parametrize(
        "no",
        [OldNews("duplicate"), CallFailed("timeout", "…"), ValueError("a bug")],
        ids=lambda no: type(no).__name__,
    )
    def test_with_a_handler_that_says_no(self, no, broker):
        job = asking(grant(), where="handler", then=raiser(no))

        work(make_operation(job=job), job)

        assert (orders(), broker.depth(AFTER), IdempotencyRecord.objects.count()) == ([], 0, 0)

    def test_with_a_finish_that_the_proof_refused(self, broker):
        job = asking(grant(), then=lambda: earlier(operation, "lease_expires_at"))
        operation = make_operation(job=job)

        assert work(operation, job).status == "processing"

        assert (orders(), broker.depth(AFTER)) == ([], 0)

    def test_with_all_others_if_one_is_refused(self):
        job = asking(grant("1"), (AFTER, {"nonsense": True}), grant("3"))

        operation = work(make_operation(job=job), job)

        assert (operation.status, operation.reason) == ("failed_permanent", "bug")
        assert orders() == []


class TestRefused:
    """What can't follow is a bug of the one that asked: a person sees it as its dead letter."""

    def refused(self, *wanted, **changes):
        job = asking(*wanted)
        operation = work(make_operation(job=job, **changes), job)
        assert (operation.status, operation.reason, orders()) == ("failed_permanent", "bug", [])
        return operation.dead_letters.get()

    def test_is_a_job_that_nobody_knows(self):
        letter = self.refused(("tests.unknown", {}))

        assert (letter.error_class, "'tests.unknown'" in letter.error_message) == ("NoSuchJob", True)

    @pytest.mark.parametrize(
        "payload",
        [{}, {"order_id": None}, {"order_id": "1", "more": 2}, {"order_id": ["1"]}, {"order_id": "a\0b"}],
    )
    def test_is_a_payload_that_the_job_does_not_take(self, payload):
        assert self.refused((AFTER, payload)).error_class == "ValidationError"

    @pytest.mark.parametrize("payload", [{"order_id": object()}, {"order_id": float("nan")}])
    def test_is_a_payload_that_is_not_json(self, payload):
        assert self.refused((AFTER, payload)).error_class in ("TypeError", "ValueError")

    def test_is_one_too_many_in_a_row(self, settings):
        letter = self.refused(grant(), depth=settings.MAX_FOLLOW_UPS)

        assert (letter.error_class, "at most 8" in letter.error_message) == ("TooDeep", True)

    def test_is_one_whose_key_the_owner_has_taken(self):
        """Who knows the operation's id could work the key out, and quietly keep something from following."""
        job = asking(grant())
        operation = make_operation(job=job)
        foreseen = asking(grant())
        twin = make_operation(job=foreseen, owner=operation.owner)
        work(twin, foreseen)
        key = followers()[0].idempotency_key.replace(str(twin.id), str(operation.id))
        accept.accept(make_request(operation.owner, job=jobs.get(AFTER), key=key))

        operation = work(operation, job)

        assert (operation.status, operation.reason) == ("failed_permanent", "bug")
        assert operation.dead_letters.get().error_class == "KeyReused"


class TestDepth:
    def test_ends_two_jobs_that_follow_each_other_for_ever(self, monkeypatch, settings):
        def ask(run, answer, **values):
            run.follow_up("tests.pong" if run.claim.operation.job_type == "tests.ping" else "tests.ping", {})

        pair = {name: make_job(ask, name=name) for name in ("tests.ping", "tests.pong")}
        for name, job in pair.items():
            monkeypatch.setitem(jobs._registry, name, job)
        make_operation(job=pair["tests.ping"])

        for _ in range(settings.MAX_FOLLOW_UPS + 5):
            for waiting in Operation.objects.filter(status="queued"):
                work(waiting, pair[waiting.job_type])

        # One that was asked for, and eight that followed; the last could not be followed.
        depths = list(Operation.objects.order_by("depth").values_list("depth", "status"))
        assert depths == [*[(depth, "succeeded") for depth in range(8)], (8, "failed_permanent")]
        last = Operation.objects.get(depth=8)
        assert last.dead_letters.get().error_class == "TooDeep"


class TestOrdered:
    def test_gets_its_place_in_the_finish(self, monkeypatch):
        job = make_job(name="tests.inline", payload=Grant, resource="tests:line:{user_id}", ordered=True)
        monkeypatch.setitem(jobs._registry, job.name, job)
        asks = asking((job.name, {"order_id": "1"}), (job.name, {"order_id": "2"}))

        work(make_operation(job=asks), asks)

        assert [(one.data.payload["order_id"], one.resource_seq) for one in followers()] == [
            ("1", 1),
            ("2", 2),
        ]


class TestCancelledByADeadlock:
    def test_of_two_that_ask_in_opposite_order(self, monkeypatch):
        """Each finish takes a place in both lines; the database gives one up, and it is repeated."""
        lines = {
            name: make_job(name=name, payload=Grant, resource=f"{name}:{{order_id}}", ordered=True)
            for name in ("tests.left", "tests.right")
        }
        for name, job in lines.items():
            monkeypatch.setitem(jobs._registry, name, job)
        wanted = [(name, {"order_id": "1"}) for name in lines]
        one, other = asking(*wanted), asking(*reversed(wanted))
        pairs = [(make_operation(job=job), job) for job in (one, other)]

        ends = [aside(lambda pair=pair: work(*pair).status) for pair in pairs]

        assert [end.result(10) for end in ends] == ["succeeded", "succeeded"]
        assert sorted(followers().values_list("job_type", "resource_seq")) == [
            ("tests.left", 1),
            ("tests.left", 2),
            ("tests.right", 1),
            ("tests.right", 2),
        ]
