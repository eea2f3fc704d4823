"""What is turned away although nothing is wrong with it: too many, too much, too late."""

from datetime import timedelta

import pytest
from django.utils import timezone

from operations import admission
from operations.models import Hold, HoldKind, IdempotencyRecord, Operation
from tests.factories import make_operation, make_user
from tests.operations.test_api import is_problem, nothing_was_accepted, sync

pytestmark = pytest.mark.django_db

__all__ = ["sync"]

LONG_AGO = timedelta(hours=1)


class TestOpenOperations:
    @pytest.fixture(autouse=True)
    def few(self, settings):
        settings.MOST_OPEN_OPERATIONS = 3

    @pytest.mark.parametrize("status", ["queued", "retry_scheduled", "processing"])
    def test_are_limited(self, sync, user, status):
        for _ in range(3):
            make_operation(owner=user, status=status)

        response = sync()

        assert is_problem(response, 429, "too-many-open")
        assert int(response["Retry-After"]) >= 1
        assert not IdempotencyRecord.objects.exists()

    def test_do_not_count_once_they_are_done(self, sync, user):
        for status in ("succeeded", "ignored", "failed_permanent"):
            make_operation(owner=user, status=status)

        assert sync().status_code == 202

    def test_of_another_user_do_not_count(self, sync):
        other = make_user()
        for _ in range(3):
            make_operation(owner=other)

        assert sync().status_code == 202

    def test_may_be_as_many_as_they_like_at_zero(self, sync, user, settings):
        settings.MOST_OPEN_OPERATIONS = 0
        for _ in range(3):
            make_operation(owner=user)

        assert sync().status_code == 202

    def test_do_not_keep_a_repeat_away(self, sync, user):
        first = sync().json()["operation_id"]
        for _ in range(3):
            make_operation(owner=user)
        admission.forget()

        again = sync()

        assert (again.status_code, again.json()["operation_id"]) == (202, first)
        assert is_problem(sync(key="k-2"), 429, "too-many-open")
        assert is_problem(sync('{"not": "valid"}'), 422, "idempotency-key-reused")


class TestOldestWait:
    def test_closes_the_job(self, sync, settings):
        make_operation(run_at=timezone.now() - LONG_AGO)

        response = sync()

        assert is_problem(response, 503, "temporary-reduced-capacity")
        assert 2 <= int(response["Retry-After"]) <= 6
        assert Operation.objects.count() == 1

    @pytest.mark.parametrize(
        "columns",
        [
            {"run_at": timezone.now() + LONG_AGO},
            {"run_at": timezone.now() - LONG_AGO, "status": "succeeded"},
            {"run_at": timezone.now() - LONG_AGO, "job_type": "tests.other"},
        ],
        ids=["not due", "done", "of another job"],
    )
    def test_is_not_that_of_one_that_is(self, sync, columns):
        make_operation(**columns)

        assert sync().status_code == 202

    def test_is_not_that_of_what_is_held(self, sync):
        """Nobody knows how long it will wait, and more may wait with it."""
        make_operation(run_at=timezone.now() - LONG_AGO)
        Hold.objects.create(kind=HoldKind.PAUSE, job_types=["inventory.sync"], scope="type:inventory.sync")

        assert sync().status_code == 202

    def test_is_not_that_of_what_is_behind_a_dead_letter(self, sync):
        """It waits for a person, and no worker could help."""
        line = {"resource": "inventory:user:1", "run_at": timezone.now() - LONG_AGO}
        make_operation(status="failed_permanent", resource_seq=1, **line)
        make_operation(resource_seq=2, **line)

        assert sync().status_code == 202

    def test_begins_when_the_last_hold_ended(self, sync):
        make_operation(run_at=timezone.now() - LONG_AGO)
        Hold.objects.create(
            kind=HoldKind.PAUSE,
            job_types=["inventory.sync"],
            scope="type:inventory.sync",
            ended_at=timezone.now(),
        )

        assert sync().status_code == 202

    def test_does_not_matter_at_zero(self, sync, settings):
        settings.OLDEST_WAIT_SECONDS = 0
        make_operation(run_at=timezone.now() - LONG_AGO)

        assert sync().status_code == 202


class TestQuota:
    def test_is_told_with_every_answer(self, sync, api):
        assert sync()["RateLimit-Policy"] == '"posts";q=600;w=60'
        assert api.get("/v1/inventory")["RateLimit"].startswith('"reads";r=1799;t=')

    def test_turns_away_before_the_key_is_read(self, sync, settings):
        settings.POSTS_PER_MINUTE = 2
        answers = [sync(key="k 1"), sync(key="k 1"), sync(key="k 1")]

        assert [answer.status_code for answer in answers] == [400, 400, 429]
        assert is_problem(answers[-1], 429, "quota-exceeded")
        assert 1 <= int(answers[-1]["Retry-After"]) <= 60
        assert answers[-1]["RateLimit"] == f'"posts";r=0;t={answers[-1]["Retry-After"]}'
        assert nothing_was_accepted()

    def test_of_reading_is_another_than_that_of_posting(self, sync, api, settings):
        settings.POSTS_PER_MINUTE = 1
        sync()

        assert sync().status_code == 429
        assert api.get("/v1/inventory").status_code == 200

    def test_counts_nobody_without_credentials(self, client):
        response = client.get("/v1/inventory")

        assert response.status_code == 401
        assert "RateLimit" not in response
