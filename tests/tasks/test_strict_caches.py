"""What is strict is marked while a run commits: no read shows it old, whatever becomes of the run."""

from functools import partial

import pytest
from django.db import OperationalError

from operations import cache_store
from operations.jobs import Rejected
from operations.models import AfterCommit
from tasks import relay
from tests.tasks.test_run import Job, raiser, written

pytestmark = pytest.mark.django_db(transaction=True)

NAME = "tests:exact"


@pytest.fixture
def exact(declare):
    return declare(NAME, str, strict=True)


def job(**how):
    return Job(invalidates=[f"{NAME}:{{user_id}}"], **how)


def is_marked(exact, operation):
    return cache_store.read(exact.place((operation.owner_id,))).is_marked


class TestMark:
    def test_is_set_before_the_handler_writes_and_gone_after_the_commit(self, exact):
        seen = []
        one = job(handler=lambda run, answer, **values: seen.append(is_marked(exact, operation)))
        operation = one.operation()

        assert one.work(operation).status == "succeeded"
        assert seen == [True]
        assert not is_marked(exact, operation)

    def test_is_taken_back_when_surely_nothing_was_committed(self, exact):
        one = job(handler=raiser(Rejected("out_of_stock", "none are left")))
        operation = one.operation()

        assert one.work(operation).status == "failed_permanent"
        assert not is_marked(exact, operation)

    def test_stays_when_nobody_knows_whether_it_was(self, exact, monkeypatch):
        one = job()
        operation = one.operation()
        monkeypatch.setattr("tasks.run._finish", raiser(OperationalError("the server went away")))

        assert one.work(operation).status == "retry_scheduled"
        assert is_marked(exact, operation)

    def test_is_taken_back_by_the_relay_for_a_worker_that_died_after_its_commit(self, exact, monkeypatch):
        monkeypatch.setattr("tasks.run.after_commit.settle", lambda *owed: None)
        one = job()
        operation = one.operation()
        one.work(operation)
        assert is_marked(exact, operation)
        AfterCommit.objects.update(run_at="2000-01-01T00:00:00Z")

        assert relay.repeat_after_commit() == 1

        assert not is_marked(exact, operation)

    def test_that_cannot_be_set_lets_nothing_be_committed(self, exact, monkeypatch):
        monkeypatch.setattr(cache_store, "mark", raiser(ConnectionError()))
        one = job()

        waiting = one.work(one.operation())

        assert (waiting.status, waiting.reason) == ("retry_scheduled", "dependency_unavailable")
        assert not written(waiting)

    def test_outlives_the_hard_limit(self, exact):
        seen = []
        look = partial(cache_store.client().pttl)
        one = job(
            handler=lambda run, answer, **values: seen.append(look(exact.place((operation.owner_id,)).marks)),
            hard_limit=100,
        )
        operation = one.operation()
        one.work(operation)

        assert seen[0] > 100_000 - 1_000
