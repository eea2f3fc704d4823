"""What was kept long enough goes, in small portions; what can still act, or waits for a person, stays."""

import uuid
from datetime import timedelta

import pytest
from django.utils import timezone

from operations import retention
from operations.models import (
    AfterCommit,
    AuditEntry,
    DeadLetter,
    Effect,
    EffectEvidence,
    IdempotencyRecord,
    Operation,
    OperationData,
    Status,
    Transition,
)
from tests.factories import make_dead_letter, make_operation
from tests.threads import meanwhile

pytestmark = pytest.mark.django_db(transaction=True)

LONG_AGO = timedelta(days=31)


@pytest.fixture(autouse=True)
def at_the_beginning():
    retention.begin_again()


def make_old(status=Status.SUCCEEDED, *, ago=LONG_AGO, **changes):
    """Make an operation that was accepted, and if final also done, so long ago."""
    then = timezone.now() - ago
    done = {"finished_at": then} if status in (Status.SUCCEEDED, Status.IGNORED, "failed_permanent") else {}
    id = uuid.UUID(int=(int(then.timestamp() * 1000) << 80) + uuid.uuid4().int % 2**62)
    return make_operation(status=status, id=id, created_at=then, **done, **changes)


def make_record(operation):
    return IdempotencyRecord.objects.create(
        user=operation.owner,
        job_type=operation.job_type,
        idempotency_key=str(operation.id),
        request_hash="v1:0",
        operation=operation,
    )


class TestPurgeKeys:
    def test_deletes_each_that_is_over_and_then_nothing(self, monkeypatch):
        monkeypatch.setattr(retention, "PORTION", 3)
        for _ in range(7):
            make_record(make_old())
        kept = make_record(make_old(Status.FAILED_PERMANENT))

        assert [retention.purge_keys() for _ in range(3)] == [3, 3, 1]
        assert [*IdempotencyRecord.objects.all()] == [kept]
        retention.begin_again()
        assert retention.purge_keys() == 0

    def test_looks_again_from_the_beginning_after_a_rest(self, monkeypatch):
        operation = make_old(ago=timedelta(hours=1))
        make_record(operation)
        assert retention.purge_keys() == 0
        Operation.objects.update(finished_at=timezone.now() - LONG_AGO)
        assert retention.purge_keys() == 0

        monkeypatch.setattr(retention.time, "monotonic", lambda: float("inf"))

        assert retention.purge_keys() == 1

    def test_goes_past_what_must_be_kept(self, monkeypatch):
        monkeypatch.setattr(retention, "PORTION", 2)
        for _ in range(4):
            make_record(make_old(Status.QUEUED))
        make_record(make_old())

        assert sum(retention.purge_keys() for _ in range(3)) == 1

    def test_leaves_alone_those_of_a_job_that_is_not_in_this_code(self):
        make_record(make_old(job_type="tests.gone"))

        assert retention.purge_keys() == 0

    def test_waits_for_nobody(self):
        record = make_record(make_old())

        with meanwhile(lambda: IdempotencyRecord.objects.select_for_update().get(id=record.id)):
            assert retention.purge_keys() == 0


class TestPurgeOperations:
    @pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.IGNORED])
    def test_deletes_all_that_was_written_about_one(self, status):
        operation = make_old(status)
        make_dead_letter(operation, resolution="replayed_ok", resolved_at=timezone.now())
        Effect.objects.create(operation=operation, step="reserved", run=1)
        EffectEvidence.objects.create(operation=operation, step="x", generation=1, run=1, certainty="refused")
        Transition.objects.create(operation=operation, to_status=status, run=1, attempt=1, at=timezone.now())
        AuditEntry.objects.create(
            actor="ayu", action="replay", target=f"operation:{operation.id}", reason="x"
        )

        assert retention.purge_operations() == 1

        gone = (Operation, OperationData, DeadLetter, Effect, EffectEvidence, Transition)
        assert [model.objects.count() for model in gone] == [0] * len(gone)
        assert AuditEntry.objects.count() == 1

    @pytest.mark.parametrize(
        "status", [Status.QUEUED, Status.RETRY_SCHEDULED, Status.PROCESSING, Status.FAILED_PERMANENT]
    )
    def test_keeps_what_can_still_act(self, status):
        make_old(status)

        assert retention.purge_operations() == 0

    def test_keeps_what_was_done_not_long_ago(self):
        make_old()
        Operation.objects.update(finished_at=timezone.now() - timedelta(days=29))

        assert retention.purge_operations() == 0

    def test_keeps_what_a_key_still_names(self):
        make_record(make_old())

        assert retention.purge_operations() == 0
        retention.purge_keys()
        retention.begin_again()
        assert retention.purge_operations() == 1

    def test_keeps_what_has_overtaken_a_dead_letter(self):
        """It is why that one may not be replayed."""
        dead = make_old(Status.FAILED_PERMANENT, resource="r", resource_seq=1)
        make_old(resource="r", resource_seq=2)
        make_old(resource="another", resource_seq=2)

        assert retention.purge_operations() == 1
        Operation.objects.filter(id=dead.id).update(status=Status.IGNORED)
        retention.begin_again()
        assert retention.purge_operations() == 2

    def test_keeps_what_still_owes_something(self):
        AfterCommit.objects.create(operation=make_old(), resource="r", run_at=timezone.now())

        assert retention.purge_operations() == 0
