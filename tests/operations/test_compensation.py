"""To turn back, and to end after that: only who may, and only when nothing is unknown or left."""

import uuid
from datetime import timedelta

import pytest

from operations import cancel, compensation, lifecycle
from operations.compensation import Ending
from operations.jobs import Backoff
from operations.models import Effect, Operation, ResourceFence
from tests.factories import earlier, make_claim, make_failure, make_job, make_operation

pytestmark = pytest.mark.django_db

ENDING = Ending("failed_permanent", "bug")


@pytest.fixture
def job():
    return make_job(
        call=lambda run, **payload: None, compensate=lambda run, **payload: None, no_return="take"
    )


def reserve(operation, step="reserved", certainty="confirmed"):
    outside = {"kind": "outside", "key": "k", "request": {}, "sent_at": operation.created_at}
    kind = {} if certainty == "confirmed" else {**outside, "certainty": certainty}
    return Effect.objects.create(operation=operation, step=step, run=1, **kind)


def waiting(job, **changes):
    operation = make_operation(job=job, status="retry_scheduled", reason="timeout", **changes)
    reserve(operation)
    return operation


class TestTurnBack:
    @pytest.fixture
    def claim(self, job):
        claim = make_claim(make_operation(job=job))
        reserve(claim.operation)
        return claim

    def turn(self, claim, job):
        return compensation.turn_back(claim, job, ENDING, make_failure())

    def test_waits_with_a_budget_of_its_own(self, claim, job):
        Operation.objects.update(interruptions=7, lookups=7)

        turned = self.turn(claim, job)

        assert (turned.status, turned.compensating_for) == ("retry_scheduled", "failed_permanent bug")
        assert (turned.attempt, turned.interruptions, turned.lookups) == (0, 0, 0)

    def test_is_refused_to_who_holds_it_no_more(self, claim, job):
        assert self.turn(claim._replace(token=uuid.uuid4()), job) is None

    @pytest.mark.parametrize("certainty", ["maybe_sent"])
    def test_is_refused_while_something_is_unknown(self, claim, job, certainty):
        reserve(claim.operation, "paid", certainty)

        assert self.turn(claim, job) is None

    @pytest.mark.parametrize("certainty", ["not_sent", "refused"])
    def test_has_nothing_to_do_with_what_was_not_done(self, job, certainty):
        claim = make_claim(make_operation(job=job))
        reserve(claim.operation, "paid", certainty)

        assert self.turn(claim, job) is None

    def test_is_refused_past_the_return(self, claim, job):
        reserve(claim.operation, "take")

        assert self.turn(claim, job) is None

    def test_is_done_once(self, claim, job):
        self.turn(claim, job)
        Operation.objects.update(status="processing", lease_expires_at=claim.operation.deadline_at)

        assert self.turn(claim, job) is None


class TestTurnBackCancelled:
    def test_is_for_what_its_owner_wants_no_more(self, job):
        operation = waiting(job)
        assert compensation.turn_back_cancelled(operation, job, actor="u") is None

        Operation.objects.update(cancel_requested_at=operation.created_at)

        assert compensation.turn_back_cancelled(operation, job, actor="u") is not None

    def test_is_refused_if_a_run_has_had_it_since(self, job):
        operation = waiting(job)
        Operation.objects.update(cancel_requested_at=operation.created_at, runs=2)

        assert compensation.turn_back_cancelled(operation, job, actor="u") is None


class TestTurnBackLate:
    def test_is_for_what_is_late(self, job):
        operation = waiting(job)
        assert compensation.turn_back_late(operation, job, actor="relay") is None

        earlier(operation, "deadline_at", by=timedelta(days=2))

        assert compensation.turn_back_late(operation, job, actor="relay") is not None

    def test_is_refused_if_a_run_has_had_it_since(self, job):
        operation = waiting(job)
        earlier(operation, "deadline_at", by=timedelta(days=2))
        Operation.objects.update(runs=2)

        assert compensation.turn_back_late(operation, job, actor="relay") is None


class TestTurnBackLost:
    def turn(self, operation, job):
        return compensation.turn_back_lost(
            operation, job, make_failure(category="poison"), dead="", actor="r"
        )

    @pytest.fixture
    def lost(self):
        """The job has one attempt, and its worker is gone."""

        def make(retry):
            job = make_job(call=lambda run: None, compensate=lambda run: None, retry=retry)
            claim = make_claim(make_operation(job=job))
            reserve(claim.operation)
            earlier(claim.operation, "lease_expires_at")
            return Operation.objects.get(), job

        return make

    def test_is_for_one_that_has_lost_its_last_attempt(self, lost):
        assert self.turn(*lost(Backoff())).compensating_for == "failed_permanent worker_lost"

    def test_is_refused_while_attempts_are_left(self, lost):
        assert self.turn(*lost(Backoff(1))) is None


class TestConclude:
    @pytest.fixture
    def claim(self, job):
        claim = make_claim(make_operation(job=job, compensating_for="ignored cancelled"))
        reserve(claim.operation)
        return claim

    def test_ends_as_it_was_to_end_and_undoes_its_steps(self, claim):
        ended = compensation.conclude(claim)

        assert (ended.status, ended.reason) == ("ignored", "cancelled")
        assert Effect.objects.get().undone_at is not None

    def test_is_refused_to_who_holds_it_no_more(self, claim):
        assert compensation.conclude(claim._replace(token=uuid.uuid4())) is None
        assert Effect.objects.get().undone_at is None

    def test_is_refused_while_something_is_unknown(self, claim):
        reserve(claim.operation, "void", "maybe_sent")

        assert compensation.conclude(claim) is None


class TestOtherEnds:
    """What the lifecycle does not do to an operation that has left something."""

    @pytest.fixture
    def unknown(self, job):
        claim = make_claim(make_operation(job=job, step="paid"))
        reserve(claim.operation, "paid", "maybe_sent")
        return claim

    ENDS = {
        "succeed": lambda claim: lifecycle.succeed(claim, hard_limit=40, version=None, digest=""),
        "ignore": lambda claim: lifecycle.ignore(claim, reason="duplicate"),
        "fail": lambda claim: lifecycle.fail(claim, reason="bug", failure=make_failure(category="bug")),
        "retry": lambda claim: lifecycle.retry(claim, failure=make_failure(), delay_seconds=1),
        "put_back": lambda claim: lifecycle.put_back(claim, failure=make_failure(), delay_seconds=1),
    }

    @pytest.mark.parametrize("end", ENDS)
    def test_is_not_reached_while_something_is_unknown(self, unknown, end):
        assert self.ENDS[end](unknown) is None
        assert Operation.objects.get().status == "processing"

    def test_is_reached_by_saying_that_it_is_unknown(self, unknown):
        failure = make_failure(category="outcome_unknown")

        assert lifecycle.fail(unknown, reason="outcome_unknown", failure=failure) is not None

    def test_is_not_success_while_it_turns_back(self, job):
        claim = make_claim(make_operation(job=job, compensating_for="ignored cancelled"))

        assert self.ENDS["succeed"](claim) is None
        assert self.ENDS["ignore"](claim) is None

    def test_is_not_old_news_of_what_has_done_something(self, job):
        operation = waiting(job, step="reserved", resource="r:1", resource_version=1)
        ResourceFence.objects.create(resource="r:1", fence=1, applied_version=2, applied_by=uuid.uuid4())

        assert lifecycle.pass_over(operation.id, reason="stale_version", actor="w") is None

        Operation.objects.update(step="")
        assert lifecycle.pass_over(operation.id, reason="stale_version", actor="w") is not None

    def test_is_not_a_cancel_while_something_is_unknown(self, job):
        operation = make_operation(job=job, status="retry_scheduled", reason="outcome_unknown")
        reserve(operation, "paid", "maybe_sent")

        assert cancel.withdraw(operation, actor="u") is None

    def test_is_a_discard_only_of_what_leaves_nothing(self, job):
        dead = make_operation(job=job, status="failed_permanent")
        reserve(dead)
        assert lifecycle.discard(dead.id, actor="a", why="w", compensates=True) is None
        reserve(dead, "paid", "maybe_sent")
        assert lifecycle.discard(dead.id, actor="a", why="w", compensates=False) is None

        Effect.objects.filter(step="paid").delete()
        assert lifecycle.discard(dead.id, actor="a", why="w", compensates=False) is not None
