"""What the database itself refuses, whoever asks: each constraint is violated once, by name."""

import uuid
from contextlib import contextmanager

import pytest
from django.apps import apps
from django.db import IntegrityError, transaction
from django.utils import timezone

from operations.models import (
    AuditEntry,
    BadMessage,
    BrokerEpoch,
    CacheOrder,
    DeadLetter,
    Dependency,
    Effect,
    Hold,
    IdempotencyRecord,
    JobControl,
    Operation,
    Transition,
)
from tests.factories import make_claim, make_dead_letter, make_operation

pytestmark = pytest.mark.django_db


@contextmanager
def refused_by(constraint):
    """Expect one constraint, by name, to refuse the block, and keep the test's transaction usable."""
    with pytest.raises(IntegrityError) as refusal, transaction.atomic():
        yield
    assert refusal.value.__cause__.diag.constraint_name == constraint


@contextmanager
def refused_append_only(table, verb):
    with (
        pytest.raises(IntegrityError, match=f"{table} is append-only: {verb} is refused"),
        transaction.atomic(),
    ):
        yield


def change(operation, **columns):
    Operation.objects.filter(id=operation.id).update(**columns)


def take_a_key_twice():
    operation = make_operation()
    for each in (operation, make_operation()):
        IdempotencyRecord.objects.create(
            user=operation.owner, job_type="a.b", idempotency_key="k-1", operation=each, request_hash="v1:"
        )


def bury_twice():
    make_dead_letter(make_dead_letter().operation)


def take_a_step_twice():
    operation = make_operation()
    for run in (1, 2):
        Effect.objects.create(operation=operation, step="reserved", run=run)


def keep_evidence_twice():
    for worker in ("worker@a/1", "worker@b/1"):
        BadMessage.objects.create(queue="q", fault="no_id", size=1, sha256="0" * 64, worker=worker)


def open_a_hold_twice():
    for _ in range(2):
        Hold.objects.create(scope="job_type:inventory.sync", kind="pause")


def probe_without_end():
    Dependency.objects.create(name="provider", probe_token=uuid.uuid4())


def begin_a_second_epoch():
    turn = {"value": uuid.uuid4(), "counted_by": "a/1", "counted_until": timezone.now()}
    BrokerEpoch.objects.create(id=2, **turn)


VIOLATIONS = {
    "operation_status_known": lambda: change(make_operation(), status="lost"),
    "operation_attempts_bounded": lambda: change(make_operation(), attempt=6),
    "operation_lease_belongs_to_claim": lambda: change(make_operation(), lease_expires_at=timezone.now()),
    "operation_final_has_finished": lambda: change(make_operation(), status="succeeded"),
    "one_operation_a_key": take_a_key_twice,
    "one_effect_a_step": take_a_step_twice,
    "effect_outside_has_its_intent": lambda: Effect.objects.create(
        operation=make_operation(), step="charge", kind="outside", run=1, certainty="maybe_sent", key="k"
    ),
    "one_bad_message_a_kind": keep_evidence_twice,
    "one_broker_one_epoch": begin_a_second_epoch,
    "one_open_dead_letter_an_operation": bury_twice,
    "dependency_probe_has_a_lease": probe_without_end,
    "jobcontrol_numbers_make_sense": lambda: JobControl.objects.create(scope="owner:7", backoff_factor=-1),
    "cacheorder_numbers_make_sense": lambda: CacheOrder.objects.create(cache="tests:colour", jitter=1.1),
    "hold_rate_not_negative": lambda: Hold.objects.create(scope="owner:7", kind="rate", per_second=-1),
    "one_open_hold_a_kind": open_a_hold_twice,
    "deadletter_resolved_has_a_time": lambda: make_dead_letter(resolution="discarded"),
}


class TestConstraints:
    @pytest.mark.parametrize("name", VIOLATIONS)
    def test_refuse(self, name):
        with refused_by(name):
            VIOLATIONS[name]()

    def test_are_all_violated_here(self):
        declared = {
            constraint.name
            for model in apps.get_app_config("operations").get_models()
            for constraint in model._meta.constraints
        }

        assert declared == VIOLATIONS.keys()


class TestOperation:
    @pytest.mark.parametrize(
        "columns",
        [
            {"status": "queued", "claim_token": uuid.uuid4(), "lease_expires_at": timezone.now()},
            {"status": "queued", "claimed_by": "worker-a/1"},
            {"status": "processing"},
            {"status": "processing", "claim_token": uuid.uuid4()},
        ],
    )
    def test_has_a_lease_exactly_while_it_is_claimed(self, columns):
        with refused_by("operation_lease_belongs_to_claim"):
            change(make_operation(), **columns)

    def test_has_no_end_while_it_lives(self):
        with refused_by("operation_final_has_finished"):
            change(make_operation(), finished_at=timezone.now())

    def test_gets_ids_that_grow_with_time(self):
        first, second = make_operation(), make_operation()

        assert first.id.version == 7
        assert first.id < second.id

    def test_names_itself(self):
        operation = make_operation()

        assert str(operation) == f"inventory.sync {operation.id}"

    def test_has_a_small_row(self):
        """Its row is rewritten at every move; what is large lives in OperationData."""
        make_claim(make_operation(request_id="r" * 36, correlation_id="c" * 36, idempotency_key="k" * 36))

        [row] = Operation.objects.raw(
            "SELECT id, pg_column_size(o.*) AS bytes FROM operations_operation AS o"
        )

        assert row.bytes < 400

    def test_has_five_indexes_at_most_and_none_on_what_every_beat_changes(self):
        indexed = {
            column
            for index in Operation._meta.indexes
            for expression in index.expressions
            for column in [getattr(expression, "name", None) or expression.expression.name]
        }

        assert len(Operation._meta.indexes) <= 5
        assert not indexed & {"lease_expires_at", "published_at", "step", "version", "claim_token"}


class TestTransition:
    def test_is_never_rewritten(self):
        operation = make_claim().operation

        with refused_append_only("operations_transition", "UPDATE"):
            Transition.objects.filter(operation=operation).update(reason="bug")


class TestAuditEntry:
    @pytest.fixture
    def entry(self):
        return AuditEntry.objects.create(
            actor="user:1", action="replay", target="operation:1", reason="because"
        )

    def test_is_never_rewritten(self, entry):
        with refused_append_only("operations_auditentry", "UPDATE"):
            AuditEntry.objects.update(reason="another")

    def test_is_never_deleted(self, entry):
        with refused_append_only("operations_auditentry", "DELETE"):
            AuditEntry.objects.all().delete()

        assert AuditEntry.objects.get() == entry


class TestDeadLetter:
    def test_may_follow_one_that_is_resolved(self):
        first = make_dead_letter()
        DeadLetter.objects.update(resolution="replayed_failed", resolved_at=timezone.now())

        assert make_dead_letter(first.operation).pk != first.pk
