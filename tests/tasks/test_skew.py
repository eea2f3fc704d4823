"""What no live worker knows waits for one that does, and not for ever."""

from datetime import timedelta

import pytest
from django.utils import timezone

from operations import lifecycle
from operations.models import DeadLetter, Operation, WorkerNode
from tasks import skew
from tests.factories import earlier, history, make_job, make_operation, work

pytestmark = pytest.mark.django_db(transaction=True)

SET_ASIDE = ("queued", "retry_scheduled", "unknown_job_type")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(skew, "_known", frozenset())


def worker(*job_types, name="worker@a/1", started=timedelta(minutes=5), seen=timedelta(0), kind="worker"):
    now = timezone.now()
    return WorkerNode.objects.create(
        name=name,
        kind=kind,
        release="r-1",
        job_types=list(job_types),
        started_at=now - started,
        last_seen_at=now - seen,
    )


def of_new_code(**changes):
    return make_operation(job=make_job(name="tests.new"), **changes)


def reason(operation):
    operation.refresh_from_db()
    return operation.reason


class TestSetAsideUnknown:
    def test_lets_an_operation_wait_whose_job_no_live_worker_knows(self, settings):
        worker("inventory.sync")
        unknown, known = of_new_code(), make_operation()

        assert skew.set_aside_unknown() == 1
        assert skew.set_aside_unknown() == 0

        unknown.refresh_from_db()
        assert history(unknown) == [SET_ASIDE]
        assert (unknown.attempt, unknown.waits, unknown.published_at) == (0, 1, None)
        assert unknown.waiting_for == "a worker that knows the job tests.new"
        assert unknown.run_at > timezone.now() + timedelta(
            seconds=settings.UNKNOWN_TYPE_PATIENCE_SECONDS - 60
        )
        assert reason(known) == "accepted"

    def test_asks_what_is_in_the_code_of_workers_and_not_which_queues_they_serve(self):
        worker("tests.new")
        operation = of_new_code()

        assert skew.set_aside_unknown() == 0
        assert reason(operation) == "accepted"

    @pytest.mark.parametrize(
        "node",
        [
            None,
            {"started": timedelta(seconds=50)},
            {"seen": timedelta(seconds=20)},
            {"kind": "relay"},
        ],
    )
    def test_judges_nothing_before_a_worker_was_live_for_the_grace_time(self, node):
        if node is not None:
            worker("inventory.sync", **node)
        operation = of_new_code()

        assert skew.set_aside_unknown() == 0
        assert reason(operation) == "accepted"

    def test_does_not_count_a_worker_that_is_no_longer_seen(self):
        worker("inventory.sync")
        worker("tests.new", name="worker@a/2", seen=timedelta(seconds=20))

        assert (skew.set_aside_unknown(), reason(of_new_code())) == (0, "accepted")
        assert skew.set_aside_unknown() == 1

    def test_hops_over_a_backlog_of_other_jobs(self):
        worker("inventory.sync", "tests.known")
        for _ in range(3):
            make_operation()
            make_operation(job=make_job(name="tests.known"))
        operation = of_new_code()

        assert skew.set_aside_unknown() == 1
        assert reason(operation) == "unknown_job_type"

    def test_buries_it_when_the_patience_is_over(self):
        worker("inventory.sync")
        operation = of_new_code()
        skew.set_aside_unknown()
        earlier(operation, "run_at")

        assert skew.set_aside_unknown() == 1

        letter = DeadLetter.objects.get(operation=operation)
        assert history(operation) == [SET_ASIDE, ("retry_scheduled", "failed_permanent", "unknown_job_type")]
        assert (letter.reason, letter.category, letter.attempts) == ("unknown_job_type", "bug", 0)
        assert letter.error_message == "no live worker knows the job 'tests.new'"

    def test_buries_nothing_once_its_job_is_known(self):
        worker("inventory.sync")
        operation = of_new_code()
        skew.set_aside_unknown()
        earlier(operation, "run_at")
        worker("tests.new", name="worker@a/2", started=timedelta(0))

        assert skew.set_aside_unknown() == 0
        assert reason(operation) == "unknown_job_type"

    @pytest.mark.parametrize("before", ["accepted", "unknown_job_type"])
    def test_moves_nothing_whose_worker_has_appeared_since_it_was_found(self, before):
        worker("tests.new")
        operation = of_new_code(status="retry_scheduled", reason=before)

        assert lifecycle.set_aside(operation, actor="relay") is None
        assert reason(operation) == before


class TestReleaseKnown:
    def test_makes_operations_due_when_a_worker_that_knows_their_job_appears(self):
        worker("inventory.sync")
        operation = of_new_code()
        skew.set_aside_unknown()
        assert skew.release_known() == 0

        worker("tests.new", name="worker@a/2", started=timedelta(0))

        assert skew.release_known() == 1
        assert work(operation, make_job(name="tests.new")).status == "succeeded"
        assert [to for _, to, _ in history(operation)] == ["retry_scheduled", "processing", "succeeded"]

    def test_goes_on_until_all_are_released(self, settings):
        settings.RELAY_BATCH = 2
        worker("inventory.sync")
        operations = [of_new_code() for _ in range(3)]
        assert [skew.set_aside_unknown() for _ in range(3)] == [2, 1, 0]
        worker("tests.new", name="worker@a/2")

        assert [skew.release_known() for _ in range(3)] == [2, 1, 0]

        assert not Operation.objects.filter(
            id__in=[each.id for each in operations], run_at__gt=timezone.now()
        ).exists()

    def test_looks_again_for_a_job_that_was_known_before(self):
        """A worker that knew the job went and came back between two looks."""
        node = worker("tests.new")
        skew.release_known()
        node.job_types = ["inventory.sync"]
        node.save()
        operation = of_new_code()
        assert skew.set_aside_unknown() == 1
        node.job_types = ["tests.new"]
        node.save()

        assert skew.release_known() == 1
        assert reason(operation) == "unknown_job_type"


class TestRun:
    def test_leaves_a_newer_payload_to_newer_code(self):
        operation = make_operation(job=make_job(), schema_version=2)

        left = work(operation, make_job())

        assert (left.status, left.reason) == ("retry_scheduled", "unsupported_schema")
        assert (left.attempt, left.runs, left.waits) == (0, 0, 1)
        assert left.waiting_for == "newer code: tests.work is at version 1 here, and the payload at 2"

        earlier(operation, "run_at")
        assert work(operation, make_job(schema_version=2)).status == "succeeded"

    def test_takes_an_older_payload_up_before_it_is_validated(self):
        given = {}
        job = make_job(
            lambda run, answer, **values: given.update(values),
            schema_version=2,
            upgrade={1: lambda payload: {"user_id": payload["owner"]}},
        )
        operation = make_operation(job=job, payload={"owner": 7})

        done = work(operation, job)

        assert (done.status, given, done.data.payload) == ("succeeded", {"user_id": 7}, {"owner": 7})

    def test_refuses_an_older_payload_without_a_way_up_before_a_claim(self):
        operation = make_operation(job=make_job())

        refused = work(operation, make_job(schema_version=2))

        assert history(operation) == [("queued", "failed_permanent", "unsupported_schema")]
        assert (refused.runs, refused.attempt) == (0, 0)
        assert DeadLetter.objects.get(operation=operation).reason == "unsupported_schema"
