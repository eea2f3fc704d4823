"""A worker that is behind takes what waits by the handful, and publishes what it cannot do in time."""

import time
from datetime import timedelta

import pytest
from celery import current_app
from django.utils import timezone

from operations import jobs
from operations.models import Operation
from operations.publish import publisher
from tasks import backlog, drain
from tests.factories import make_operation, work

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.broker]

LONG_AGO = timedelta(seconds=10)


@pytest.fixture
def job():
    return jobs.get("inventory.sync")


@pytest.fixture
def unsent():
    """Give a function that makes due operations for which no message was sent."""

    def make(count, **columns):
        wanted = {"published_at": None, "run_at": timezone.now() - LONG_AGO, **columns}
        return [make_operation(**wanted) for _ in range(count)]

    return make


def ids(glances):
    return {glance.operation.id for glance in glances}


class TestWaiting:
    def test_gives_all_that_no_message_was_sent_for(self, unsent, job):
        wanted = unsent(backlog.HANDFUL + 3)

        assert ids(backlog.waiting(job, began=time.monotonic())) == {operation.id for operation in wanted}

    def test_gives_nothing_twice(self, unsent, job):
        unsent(3)
        list(backlog.waiting(job, began=time.monotonic()))

        assert list(backlog.waiting(job, began=time.monotonic())) == []

    @pytest.mark.parametrize(
        "columns",
        [
            {"published_at": timezone.now()},
            {"run_at": timezone.now() + timedelta(hours=1)},
            {"status": "succeeded", "finished_at": timezone.now()},
            {"job_type": "tests.other"},
        ],
        ids=["published", "not due", "done", "of another job"],
    )
    def test_leaves_alone_what_is(self, unsent, job, columns):
        unsent(1, **columns)

        assert list(backlog.waiting(job, began=time.monotonic())) == []

    def test_publishes_the_rest_when_its_time_is_over(self, unsent, job, broker, monkeypatch):
        unsent(5)
        given = backlog.waiting(job, began=time.monotonic())
        first = next(given)
        monkeypatch.setattr(backlog.time, "monotonic", lambda: float("inf"))

        assert list(given) == []
        assert broker.depth("inventory.sync") == 4
        assert not Operation.objects.filter(published_at=None).exclude(id=first.operation.id).exists()

    def test_leaves_the_rest_as_it_was_when_there_are_messages_in_plenty(
        self, unsent, job, broker, monkeypatch
    ):
        """One second of work for each message, and nineteen new ones: a backlog would fill the broker."""
        unsent(5)
        given = backlog.waiting(job, began=time.monotonic())
        first = next(given)
        monkeypatch.setattr(backlog.time, "monotonic", lambda: float("inf"))
        monkeypatch.setattr(publisher, "has_plenty", lambda queue: True)

        assert list(given) == []
        assert broker.depth("inventory.sync") == 0
        unpublished = Operation.objects.filter(published_at=None)
        assert unpublished.count() == 4
        assert not unpublished.filter(id=first.operation.id).exists()

    def test_publishes_the_rest_when_the_worker_ends(self, unsent, job, broker, monkeypatch):
        unsent(5)
        given = backlog.waiting(job, began=time.monotonic())
        next(given)
        monkeypatch.setattr(drain, "begun", lambda: True)

        assert list(given) == []
        assert broker.depth("inventory.sync") == 4

    def test_gives_the_rest_back_when_a_run_of_them_fails(self, unsent, job, broker):
        unsent(5)

        def run_each():
            for _ in backlog.waiting(job, began=time.monotonic()):
                raise ValueError

        with pytest.raises(ValueError):  # noqa: PT011 (no text)
            run_each()

        assert broker.depth("inventory.sync") == 4

    def test_takes_nothing_when_its_time_was_used_up_by_the_run_before(self, unsent, job, broker):
        """Celery's limits run from the message: a second run would be ended by the first one's."""
        unsent(3)

        assert list(backlog.waiting(job, began=time.monotonic() - backlog.LONGEST_SECONDS)) == []
        assert broker.depth("inventory.sync") == 0


class TestExecute:
    def test_runs_what_waits_when_its_own_operation_had_waited_long(self, unsent, provider):
        provider.has(version=1)
        named = unsent(4)[0]

        work(named)

        assert set(Operation.objects.values_list("status", flat=True)) == {"succeeded"}

    def test_runs_what_waits_when_its_message_tells_of_more(self, unsent, provider):
        """Even if nothing is left to do for the operation that the message names."""
        provider.has(version=1)
        unsent(3)
        task = current_app.tasks["inventory.sync"]
        task.push_request(more=True)
        try:
            task.run(str(make_operation(status="succeeded").id))
        finally:
            task.pop_request()

        assert set(Operation.objects.values_list("status", flat=True)) == {"succeeded"}

    def test_runs_nothing_else_when_it_is_not_behind(self, unsent, provider):
        provider.has(version=1)
        unsent(3)

        work(make_operation())

        assert Operation.objects.filter(status="queued").count() == 3
