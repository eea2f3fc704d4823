"""One run of one operation: what it does in every case, and that nothing happens twice."""

import uuid
from datetime import timedelta

import httpx
import pytest
from django.contrib.auth.models import User
from django.db import OperationalError, connection, transaction
from django.utils import timezone

from inventory.models import InventoryItem
from operations.jobs import Backoff, Rejected
from operations.models import AfterCommit, DeadLetter, Operation, ResourceFence, Status, Transition
from tasks import after_commit, lock
from tasks.base import app
from tasks.handle import OldNews
from tasks.retry import CallFailed
from tests.factories import earlier, history, make_claim, make_job, make_operation, work

pytestmark = pytest.mark.django_db(transaction=True)

RESOURCE = "tests:of:{user_id}"
UNKNOWN = "2281f947-0000-4000-8000-000000000000"
AWAY = httpx.Response(503)


@pytest.fixture(autouse=True)
def no_breaker(settings):
    """Let no breaker open: its five failures are all that some of these operations have."""
    settings.BREAKER_FAILURES = 1_000


class Job:
    """A job whose call and handler do as the test says, and that counts what was done."""

    def __init__(self, call=None, handler=None, **contract):
        self.calls, self.handled = [], []
        self._call, self._handler = call, handler
        self.job = make_job(self.handle, call=self.call, resource=RESOURCE, **contract)

    def call(self, run, **values):
        self.calls.append(run)
        return None if self._call is None else self._call(run, **values)

    def handle(self, run, answer, **values):
        """Write something of ours, then do as the test says."""
        User.objects.filter(id=values["user_id"]).update(first_name=f"run {run.number}")
        self.handled.append(answer)
        return None if self._handler is None else self._handler(run, answer, **values)

    def operation(self, **changes):
        return make_operation(job=self.job, **changes)

    def work(self, operation):
        return work(operation, self.job)


def written(operation):
    """Say whether a handler's write was committed."""
    return User.objects.get(id=operation.owner_id).first_name != ""


def last_move(operation):
    return Transition.objects.filter(operation_id=operation.id).latest("id")


def raiser(error):
    def fail(*args, **values):
        raise error

    return fail


class TestSuccess:
    def test_commits_what_the_handler_wrote_with_the_end(self):
        job = Job(
            call=lambda run, **values: {"answer": 42}, handler=lambda run, answer, **values: {"got": answer}
        )

        operation = job.work(job.operation())

        assert (operation.status, operation.reason, operation.attempt) == (Status.SUCCEEDED, "", 1)
        assert written(operation)
        assert operation.data.result == {"got": {"answer": 42}}
        assert history(operation) == [("queued", "processing", ""), ("processing", "succeeded", "")]
        after_commit.forget_settled()
        assert not AfterCommit.objects.exists()

    def test_calls_with_no_transaction_open_and_handles_inside_one(self):
        inside = []
        job = Job(
            call=lambda run, **values: inside.append(connection.in_atomic_block),
            handler=lambda run, answer, **values: inside.append(connection.in_atomic_block),
        )

        job.work(job.operation())

        assert inside == [False, True]

    def test_needs_no_call(self):
        job = make_job()

        assert work(make_operation(job=job), job).status == Status.SUCCEEDED

    def test_needs_no_resource(self):
        job = make_job()

        work(make_operation(job=job), job)

        assert not ResourceFence.objects.exists()

    def test_tells_the_job_its_operation_and_run(self):
        job = Job(call=lambda run, **values: (run.operation_id, run.number, run.key("charge")))
        operation = job.operation(status="retry_scheduled", runs=2)

        job.work(operation)

        # The key names the operation and the step, never the run: it stays the same in every run.
        assert job.handled == [(str(operation.id), 3, f"{operation.id}:charge:g1")]


class TestNothingToDo:
    @pytest.mark.parametrize("given", ["nonsense", "", None, 17, UNKNOWN, ["a"], {"id": 1}])
    def test_lets_a_message_go_that_names_nothing(self, given):
        app.tasks["inventory.sync"].run(given)

        assert not Operation.objects.exists()

    @pytest.mark.parametrize("status", ["processing", "succeeded", "failed_permanent", "ignored"])
    def test_leaves_alone_what_does_not_wait(self, status, provider):
        operation = make_operation(status=status)
        before = Operation.objects.values().get()

        work(operation)

        assert (Operation.objects.values().get(), history(operation)) == (before, [])
        assert provider.asked == []

    def test_leaves_alone_what_is_not_due(self, provider):
        operation = make_operation(status="retry_scheduled", run_at=timezone.now() + timedelta(minutes=1))

        assert work(operation).status == "retry_scheduled"

        assert provider.asked == []

    def test_leaves_alone_what_is_another_jobs(self):
        job = Job()
        operation = make_operation()

        assert work(operation, job.job).status == "queued"

        assert job.calls == []

    def test_asks_once_for_a_message_that_is_delivered_twice(self, provider):
        provider.has(version=1, sword=1)
        operation = make_operation()

        first, second = work(operation), work(operation)

        assert len(provider.asked) == 1
        assert (first.runs, second.runs) == (1, 1)

    def test_does_not_do_it_again_when_it_is_delivered_during_the_run(self):
        again = []
        job = Job(call=lambda run, **values: again.append(job.work(operation)))
        operation = job.operation()

        job.work(operation)

        assert (len(job.calls), again[0].status) == (1, "processing")


class TestUnfit:
    def test_refuses_a_stored_payload_that_the_code_no_longer_takes(self, provider):
        operation = work(make_operation(payload={"user_id": "x", "colour": "red"}))

        assert (operation.status, operation.reason) == ("failed_permanent", "invalid_input")
        assert (operation.runs, operation.attempt) == (0, 0)
        assert "colour" in DeadLetter.objects.get().error_message
        assert provider.asked == []

    def test_refuses_what_nobody_needs_any_more(self, provider):
        operation = work(make_operation(deadline_at=timezone.now() - timedelta(seconds=1)))

        assert (operation.status, operation.reason) == ("failed_permanent", "deadline_passed")
        assert provider.asked == []


class TestTransientFailure:
    def test_schedules_the_next_attempt_by_the_databases_clock(self, provider):
        provider.answers(AWAY)

        operation = work(make_operation())

        assert (operation.status, operation.reason) == ("retry_scheduled", "dependency_unavailable")
        # 5 s and up to as much again, counted from the move.
        assert 5 <= (operation.run_at - last_move(operation).at).total_seconds() <= 10.01
        assert operation.published_at is None
        assert operation.data.error == {
            "category": "dependency_unavailable",
            "class": "CallFailed",
            "message": "HTTP 503",
            "dependency": "inventory-provider",
        }

    def test_goes_on_when_it_passes(self, provider):
        provider.answers(AWAY)
        operation = work(make_operation())
        provider.has(version=1, sword=1)
        earlier(operation, "run_at")

        operation = work(operation)

        assert (operation.status, operation.runs, operation.attempt) == ("succeeded", 2, 2)

    def test_waits_at_least_as_long_as_the_other_side_asks(self, provider):
        provider.answers(httpx.Response(429, headers={"Retry-After": "77"}))

        operation = work(make_operation())

        assert operation.reason == "rate_limited"
        assert (operation.run_at - last_move(operation).at).total_seconds() == pytest.approx(77, abs=0.1)

    def test_frees_the_lock_for_others(self, provider):
        provider.answers(AWAY)
        work(make_operation(resource="inventory:user:7"))
        provider.has(version=1)

        assert work(make_operation(resource="inventory:user:7")).status == "succeeded"


class TestLastAttempt:
    def exhaust(self, provider, operation):
        """Work whenever it is due, until nothing is; give the pauses between attempts in seconds."""
        pauses = []
        while (operation := work(operation)).status == "retry_scheduled":
            pauses.append((operation.run_at - last_move(operation).at).total_seconds())
            earlier(operation, "run_at")
        work(operation)
        return operation, pauses

    def test_is_the_fifth(self, provider):
        provider.answers(AWAY)

        operation, pauses = self.exhaust(provider, make_operation())

        assert len(provider.asked) == 5
        assert len(pauses) == 4
        for seconds, pause in zip((5, 15, 45, 120), pauses, strict=True):
            assert seconds <= pause <= seconds * 2 + 0.01
        assert (operation.status, operation.reason) == ("failed_permanent", "attempts_exhausted")
        assert (operation.runs, operation.attempt) == (5, 5)

    def test_leaves_one_dead_letter_that_says_everything(self, provider):
        provider.answers(AWAY)

        operation, _ = self.exhaust(
            provider, make_operation(idempotency_key="k-1", correlation_id="c-1", schema_version=1)
        )

        letter = DeadLetter.objects.get()
        assert letter.operation == operation
        assert (letter.job_type, letter.reason) == ("inventory.sync", "attempts_exhausted")
        assert (letter.category, letter.dependency) == ("dependency_unavailable", "inventory-provider")
        assert (letter.error_class, letter.error_message) == ("CallFailed", "HTTP 503")
        assert (letter.idempotency_key, letter.correlation_id) == ("k-1", "c-1")
        assert (letter.attempts, letter.runs, letter.schema_version) == (5, 5, 1)
        assert letter.first_processed_at == operation.first_started_at
        assert letter.last_processed_at == operation.started_at > operation.first_started_at
        assert "inventory/provider.py" in letter.traceback
        assert len(letter.signature) == 16
        assert (letter.expected, letter.resolution, letter.resolved_at) == (False, "waiting", None)

    def test_says_so_when_it_was_too_slow(self, provider):
        provider.answers(httpx.ReadTimeout("too slow"))

        operation, _ = self.exhaust(provider, make_operation())

        assert operation.reason == "timeout_exhausted"

    def test_is_the_only_one_of_a_job_without_pauses(self):
        job = Job(call=raiser(CallFailed("timeout", "…")), retry=Backoff())

        assert job.work(job.operation()).reason == "timeout_exhausted"

    def test_follows_the_schedule_when_the_handler_is_what_fails(self, provider):
        job = Job(handler=raiser(CallFailed("conflict", "somebody was at it")))
        operation = job.operation()

        while (operation := job.work(operation)).status == "retry_scheduled":
            earlier(operation, "run_at")

        assert (operation.reason, len(job.handled)) == ("attempts_exhausted", 5)
        assert not written(operation)


class TestResult:
    def test_is_cleaned_of_what_cannot_be_stored(self):
        unstorable = {"text": "a\0b", "half": "\ud800", "ratio": float("nan")}
        job = Job(handler=lambda run, answer, **values: unstorable)

        operation = job.work(job.operation())

        assert operation.status == "succeeded"
        assert operation.data.result == {"text": "a\N{REPLACEMENT CHARACTER}b", "half": "?", "ratio": None}


class TestPermanentFailure:
    @pytest.mark.parametrize(
        ("answer", "reason"), [(400, "invalid_input"), (404, "not_found"), (422, "invalid_input")]
    )
    def test_is_tried_once(self, provider, answer, reason):
        provider.answers(httpx.Response(answer))

        operation = work(make_operation())

        assert (operation.status, operation.reason, operation.attempt) == ("failed_permanent", reason, 1)
        assert DeadLetter.objects.get().reason == reason

    @pytest.mark.parametrize("where", ["call", "handler"])
    def test_is_a_bug_when_nobody_foresaw_it(self, where):
        job = Job(**{where: raiser(KeyError("colour"))})

        operation = job.work(job.operation())

        assert (operation.status, operation.reason, operation.attempt) == ("failed_permanent", "bug", 1)
        letter = DeadLetter.objects.get()
        assert (letter.error_class, letter.error_message) == ("KeyError", "'colour'")
        assert not written(operation)

    @pytest.mark.parametrize("where", ["call", "handler"])
    def test_is_a_no_of_the_domain(self, where):
        job = Job(**{where: raiser(Rejected("sold_out", "no sword is left"))})

        operation = job.work(job.operation())

        assert (operation.status, operation.reason) == ("failed_permanent", "business_rejected")
        assert operation.data.error["message"] == "no sword is left"
        assert DeadLetter.objects.get().expected is True
        assert not written(operation)

    def test_survives_an_error_that_cannot_say_what_it_is(self):
        class Unspeakable(Exception):
            def __str__(self):
                raise RuntimeError

        job = Job(call=raiser(Unspeakable()))

        assert job.work(job.operation()).reason == "bug"

    def test_lets_nothing_rise_into_celery(self):
        job = Job(call=raiser(RuntimeError("boom")))

        assert job.work(job.operation()).status == "failed_permanent"


class TestVersions:
    @pytest.fixture
    def applied(self, provider, user):
        """Apply version 5 of a user's inventory, and give a function that tries to apply another."""
        provider.has(version=5, sword=1)
        work(make_operation(owner=user))

        def then(**snapshot):
            provider.has(**snapshot)
            return work(make_operation(owner=user))

        return then

    def owned(self, user):
        return list(InventoryItem.objects.filter(user=user).values_list("sku", "quantity", "version"))

    def test_applies_a_newer_one(self, applied, user):
        assert applied(version=6, sword=2).status == "succeeded"

        assert self.owned(user) == [("sword", 2, 6)]

    def test_ignores_an_older_one(self, applied, user):
        operation = applied(version=4, sword=9)

        assert (operation.status, operation.reason) == ("ignored", "stale_version")
        assert self.owned(user) == [("sword", 1, 5)]

    def test_ignores_the_same_one_brought_by_another(self, applied, user):
        operation = applied(version=5, sword=1)

        assert (operation.status, operation.reason) == ("ignored", "duplicate")

    def test_buries_the_same_one_with_other_content(self, applied, user):
        operation = applied(version=5, sword=9)

        assert (operation.status, operation.reason) == ("failed_permanent", "invalid_input")
        assert self.owned(user) == [("sword", 1, 5)]

    def test_goes_on_with_the_one_that_it_brought_itself(self, provider):
        operation = make_operation()
        provider.has(version=5, sword=1)
        ResourceFence.objects.create(
            resource=operation.resource, applied_version=5, applied_by=operation.id, applied_hash="other"
        )

        assert work(operation).status == "succeeded"

    def test_ignores_what_became_old_while_it_worked(self):
        def overtaken(run, **values):
            ResourceFence.objects.update(applied_version=9, applied_by=uuid.uuid4())
            return {"version": 8}

        job = Job(call=overtaken, version=lambda answer: answer["version"])

        operation = job.work(job.operation())

        assert (operation.status, operation.reason) == ("ignored", "stale_version")
        assert not written(operation)


class TestProof:
    """What the handler wrote is gone whenever the last statement before COMMIT says no."""

    def test_refuses_a_run_whose_operation_was_claimed_again(self):
        def lose(run, **values):
            earlier(operation, "lease_expires_at")
            Operation.objects.update(
                claim_token=uuid.uuid4(), lease_expires_at=timezone.now() + timedelta(hours=1)
            )

        job = Job(call=lose)
        operation = job.operation()

        operation = job.work(operation)

        assert operation.status == "processing"
        assert not written(operation)
        assert history(operation) == [("queued", "processing", "")]

    def test_refuses_a_run_whose_lease_is_over(self):
        job = Job(call=lambda run, **values: earlier(operation, "lease_expires_at"))
        operation = job.operation()

        operation = job.work(operation)

        assert operation.status == "processing"
        assert not written(operation)

    def test_refuses_a_result_that_comes_after_the_hard_limit(self):
        job = Job(call=lambda run, **values: earlier(operation, "started_at"))
        operation = job.operation()

        operation = job.work(operation)

        assert (operation.status, operation.reason) == ("retry_scheduled", "timeout")
        assert not written(operation)

    def test_gives_a_run_back_whose_resource_was_claimed_by_another(self):
        job = Job(call=lambda run, **values: make_claim(resource=operation.resource))
        operation = job.operation()

        operation = job.work(operation)

        assert (operation.status, operation.reason) == ("queued", "interrupted")
        assert (operation.attempt, operation.interruptions) == (0, 1)
        assert not written(operation)

    def test_buries_a_run_that_was_interrupted_too_often(self, settings):
        job = Job(call=lambda run, **values: make_claim(resource=operation.resource))
        operation = job.operation(interruptions=settings.MAX_INTERRUPTIONS, max_attempts=1)

        operation = job.work(operation)

        assert (operation.status, operation.reason) == ("failed_permanent", "attempts_exhausted")

    def test_rolls_back_what_old_news_brought(self):
        job = Job(handler=raiser(OldNews("duplicate")))

        operation = job.work(job.operation())

        assert (operation.status, operation.reason) == ("ignored", "duplicate")
        assert not written(operation)


class TestSoftLimit:
    def test_stops_a_call_that_catches_everything(self):
        def stubborn(run, **values):
            while True:
                try:
                    connection.cursor().execute("SELECT pg_sleep(0.01)")
                except Exception:
                    continue

        job = Job(call=stubborn, soft_limit=0.1)

        operation = job.work(job.operation())

        assert (operation.status, operation.reason) == ("retry_scheduled", "timeout")
        assert operation.data.error["class"] == "SoftLimitPassed"

    def test_stops_a_handler_and_rolls_it_back(self):
        def slow(run, answer, **values):
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_sleep(10)")

        job = Job(handler=slow, soft_limit=0.1)

        operation = job.work(job.operation())

        assert (operation.status, operation.reason) == ("retry_scheduled", "timeout")
        assert not written(operation)


class TestDatabaseTrouble:
    """What the database gives up is done again with the same answer; the outside is not asked again."""

    def trouble(self, sql):
        """Make a handler that meets trouble the first time."""

        def handle(run, answer, **values):
            if len(job.handled) == 1:
                connection.cursor().execute(sql)
            return {"from": answer}

        job = Job(call=lambda run, **values: "the answer", handler=handle)
        return job

    @pytest.mark.parametrize(
        "sql",
        [
            pytest.param("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40P01'; END $$", id="deadlock"),
            pytest.param("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$", id="serialisation"),
            pytest.param("SELECT pg_terminate_backend(pg_backend_pid())", id="lost connection"),
        ],
    )
    def test_is_passed_in_the_same_attempt(self, sql):
        job = self.trouble(sql)

        operation = job.work(job.operation())

        assert (operation.status, operation.attempt) == ("succeeded", 1)
        assert (len(job.calls), job.handled) == (1, ["the answer", "the answer"])
        assert operation.data.result == {"from": "the answer"}

    def test_in_the_answer_to_commit_is_learned_from_the_row(self):
        def lose_the_answer():
            connection.cursor().execute("SELECT pg_terminate_backend(pg_backend_pid())")

        job = Job(handler=lambda run, answer, **values: transaction.on_commit(lose_the_answer))

        operation = job.work(job.operation())

        assert (operation.status, operation.attempt, len(job.handled)) == ("succeeded", 1, 1)
        assert lock.holder(operation.resource) is None
        after_commit.forget_settled()
        assert not AfterCommit.objects.exists()

    def test_is_another_attempt_when_it_lasts(self):
        job = self.trouble("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '55P03'; END $$")

        operation = job.work(job.operation())

        assert (operation.status, operation.reason) == ("retry_scheduled", "dependency_unavailable")
        assert operation.data.error["dependency"] == "database"
        assert not written(operation)

    def test_does_not_stop_the_worker_whose_connection_was_lost_while_it_was_idle(self, provider):
        provider.has(version=1)
        operation = make_operation()
        with pytest.raises(OperationalError):
            connection.cursor().execute("SELECT pg_terminate_backend(pg_backend_pid())")

        app.tasks["inventory.sync"].run(str(operation.id))

        operation.refresh_from_db()
        assert operation.status == "succeeded"
