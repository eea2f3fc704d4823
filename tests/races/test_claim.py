"""Several workers with the same message, or with messages about one resource: one of them works.

The row and the fence decide, in the database, so each worker here is a thread with a connection of its own.
"""

import uuid
from threading import Event

import pytest

from inventory.models import InventoryItem
from operations import lifecycle
from operations.models import Operation, ResourceFence, Transition
from tests.factories import earlier, make_job, make_operation, take_back, work
from tests.threads import PATIENCE_SECONDS, aside, together

pytestmark = pytest.mark.django_db(transaction=True)

WORKERS = 8


def claim(operation):
    return lifecycle.claim(operation.id, job_type=operation.job_type, worker="worker-a/1", token=uuid.uuid4())


class TestClaim:
    def test_is_won_by_one_of_many(self):
        operation = make_operation()

        claims = together(*[lambda: claim(operation)] * WORKERS)

        [won] = [each for each in claims if each is not None]
        row = Operation.objects.get()
        assert (row.claim_token, row.runs, row.attempt) == (won.token, 1, 1)
        assert (ResourceFence.objects.get().fence, Transition.objects.count()) == (1, 1)

    def test_gives_each_claim_on_a_resource_a_fence_of_its_own(self):
        operations = [make_operation(resource="inventory:user:7") for _ in range(WORKERS)]

        claims = together(*[lambda operation=operation: claim(operation) for operation in operations])

        assert sorted(each.fence for each in claims) == list(range(1, WORKERS + 1))


class TestRun:
    def test_happens_once_whoever_has_the_message(self, provider):
        provider.has(version=1, sword=1)
        operation = make_operation()

        together(*[lambda: work(operation)] * WORKERS)

        operation.refresh_from_db()
        assert (operation.status, operation.runs) == ("succeeded", 1)
        assert len(provider.asked) == 1

    def test_of_a_stale_worker_commits_nothing(self):
        """It was paused beyond its lease; meanwhile another has claimed, worked and finished."""
        called, go_on = Event(), Event()
        written = []

        def call(run, **values):
            if run.number == 1:
                called.set()
                go_on.wait(PATIENCE_SECONDS)
            return run.number

        def handle(run, answer, *, user_id):
            InventoryItem.objects.create(user_id=user_id, sku=f"of run {run.number}", quantity=1, version=1)
            written.append(run.number)

        job = make_job(handle, call=call, resource="tests:of:{user_id}")
        operation = make_operation(job=job)

        stale = aside(lambda: work(operation, job))
        called.wait(PATIENCE_SECONDS)
        earlier(operation, "lease_expires_at")
        take_back()
        together(lambda: work(operation, job))
        go_on.set()
        stale.result(PATIENCE_SECONDS)

        operation.refresh_from_db()
        assert (operation.status, operation.runs) == ("succeeded", 2)
        assert written == [2, 1]
        assert InventoryItem.objects.get().sku == "of run 2"
