"""A run whose operation was cancelled: it notices where its job looks, or whoever sees it next ends it."""

import pytest

from operations import cancel, lifecycle, reading
from operations.models import Effect, Operation
from tasks import lock
from tasks.drain import Interrupted
from tasks.retry import CallFailed
from tests.factories import earlier, history, make_claim, make_job, make_operation, take_back, work

pytestmark = pytest.mark.django_db(transaction=True)

CANCELLED = ("ignored", "cancelled")


def ask(operation_id):
    operation = Operation.objects.get(id=operation_id)
    return cancel.cancel(reading.stands(operation.id, owner_id=operation.owner_id)).operation


def standing(operation):
    return operation.status, operation.reason


def raising(error):
    """Give a call in whose middle its owner cancels it, and that then fails."""

    def call(run, **payload):
        ask(run.operation_id)
        raise error

    return call


class TestCheck:
    def test_ends_the_run_where_its_job_looks(self):
        handled = []

        def call(run, **payload):
            ask(run.operation_id)
            run.heartbeat._renew_lease()  # what a beat does when it is due
            run.check()

        job = make_job(lambda run, answer, **payload: handled.append(run), call=call)
        operation = work(make_operation(job=job), job)

        assert standing(operation) == CANCELLED
        assert history(operation)[-2:] == [("queued", "processing", ""), ("processing", *CANCELLED)]
        assert handled == []

    def test_goes_on_until_a_beat_has_heard_of_it(self):
        job = make_job(call=lambda run, **payload: (ask(run.operation_id), run.check())[0] and None)

        assert work(make_operation(job=job), job).status == "succeeded"

    def test_lets_a_job_finish_that_does_not_look(self):
        """It may have done something outside that only it knows of."""
        job = make_job(call=lambda run, **payload: ask(run.operation_id) and run.heartbeat._renew_lease())

        assert work(make_operation(job=job), job).status == "succeeded"

    def test_knows_it_from_the_claim(self):
        """Its worker had looked before, and claimed after the run that was asked had ended."""
        looked = []

        def call(run, **payload):
            looked.append(run.heartbeat.cancel_requested)
            run.check()

        job = make_job(call=call)
        operation = make_operation(job=job, cancel_requested_at="2026-01-01T00:00:00Z")
        claim = make_claim(operation)
        lifecycle.hand_back(claim, error="the worker ends")
        Effect.objects.create(operation=operation, step="reserved", run=1)

        after = work(operation, job)

        assert looked == [True]
        assert after.status == "succeeded", "what has recorded a step goes on"

    def test_lets_no_first_step_begin(self):
        done = []

        def call(run, **payload):
            ask(run.operation_id)
            run.heartbeat._renew_lease()
            run.step("reserved", lambda: done.append(1))

        job = make_job(call=call)

        assert standing(work(make_operation(job=job), job)) == CANCELLED
        assert done == []
        assert not Effect.objects.exists()

    def test_goes_on_behind_a_step(self):
        """Nothing takes it back yet, so the rest is done, too."""

        def call(run, **payload):
            run.step("reserved", lambda: None)
            Operation.objects.update(cancel_requested_at="2026-01-01T00:00:00Z")
            run.heartbeat._renew_lease()
            run.check()
            run.step("captured", lambda: None)

        job = make_job(call=call)

        assert work(make_operation(job=job), job).status == "succeeded"
        assert Effect.objects.count() == 2


class TestRunThatEndsOtherwise:
    @pytest.mark.parametrize(
        ("error", "move"),
        [
            (CallFailed("timeout", "no answer"), ("processing", "retry_scheduled", "timeout")),
            (Interrupted("the worker ends"), ("processing", "queued", "interrupted")),
        ],
    )
    def test_is_not_tried_again(self, error, move):
        job = make_job(call=raising(error))

        operation = work(make_operation(job=job), job)

        assert standing(operation) == CANCELLED
        assert history(operation)[-2:] == [move, (move[1], *CANCELLED)]

    def test_fails_if_it_fails_for_good(self):
        job = make_job(call=raising(CallFailed("not_found", "HTTP 404")))

        operation = work(make_operation(job=job), job)

        assert standing(operation) == ("failed_permanent", "not_found")

    def test_is_ended_by_whoever_sees_it_next_when_its_worker_was_lost(self):
        claim = make_claim()
        ask(claim.operation.id)
        earlier(claim.operation, "lease_expires_at")
        take_back()

        after = work(claim.operation)

        assert standing(after) == CANCELLED
        assert (after.runs, history(after)[-1]) == (1, ("retry_scheduled", *CANCELLED))

    def test_is_ended_before_it_is_due(self):
        operation = make_operation(
            status="retry_scheduled",
            run_at="2100-01-01T00:00:00Z",
            cancel_requested_at="2026-01-01T00:00:00Z",
        )

        assert standing(work(operation)) == CANCELLED

    def test_goes_on_if_it_has_recorded_a_step(self):
        job = make_job()
        operation = make_operation(job=job, cancel_requested_at="2026-01-01T00:00:00Z")
        Effect.objects.create(operation=operation, step="reserved", run=1)

        assert work(operation, job).status == "succeeded"

    def test_frees_the_lock_that_its_lost_run_had(self):
        claim = make_claim()
        operation = claim.operation
        lock.take(operation.resource, token=claim.token, operation_id=operation.id, worker="a/1")
        ask(operation.id)
        earlier(operation, "lease_expires_at")
        lifecycle.take_back(operation, actor="relay", delay_seconds=0)
        assert not lock.is_free(operation.resource)

        work(operation)

        assert lock.is_free(operation.resource)
