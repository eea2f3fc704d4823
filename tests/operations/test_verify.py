"""Each check finds what was planted for it, and nothing where everything was done by the rules."""

import json
import uuid
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models import F
from django.db.models.functions import Now

from operations import accept, lifecycle, replays, verify
from operations.jobs import Backoff
from operations.models import (
    AfterCommit,
    DeadLetter,
    Dependency,
    Effect,
    EffectEvidence,
    Hold,
    IdempotencyRecord,
    Operation,
    ResourceFence,
    Transition,
)
from tasks import relay
from tests.factories import (
    HOUR,
    earlier,
    make_claim,
    make_failure,
    make_job,
    make_operation,
    make_request,
    make_user,
    take_back,
)

pytestmark = pytest.mark.django_db


NOWHERE = "0197f000-0000-7000-8000-000000000000"
PLANTS = []


def plants(what):
    """Register a function that breaks an invariant, and only that, so that this check must find it.

    It gives what the check is to name.
    """

    def register(plant):
        PLANTS.append(pytest.param(what, plant, id=plant.__name__))
        return plant

    return register


def make_accepted(**changes):
    return accept.accept(make_request(make_user(), **changes)).operation


def make_failed():
    claim = make_claim(make_accepted())
    return lifecycle.fail(claim, reason="bug", failure=make_failure(category="bug"))


def make_synced(version, *, resource="inventory:user:7"):
    """Have an operation applied this version of a resource."""
    operation = make_accepted()
    Operation.objects.filter(id=operation.id).update(resource=resource)
    claim = make_claim(operation)
    return lifecycle.succeed(claim, hard_limit=40, version=version, digest=f"of {version}")


def change(operation, **columns):
    Operation.objects.filter(id=operation.id).update(**columns)
    return operation.id


def rewrite(operation, to_status, **columns):
    """Change history, which the database refuses."""
    unguarded("ALTER TABLE operations_transition DISABLE TRIGGER append_only")
    Transition.objects.filter(operation_id=operation.id, to_status=to_status).update(**columns)
    return operation.id


def unguarded(statement):
    """Take a guard of the database away, until the end of the test."""
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # what is still to be judged bars a change of tables
        cursor.execute(statement)


def without_constraint(name, table="operations_operation"):
    unguarded(f"ALTER TABLE {table} DROP CONSTRAINT {name}")


@plants("an operation is neither final nor at work past its deadline")
def waiting_past_its_deadline():
    return change(make_accepted(), deadline_at=F("created_at") - HOUR)


@plants("a claim whose lease is long over was not taken back")
def claim_past_its_lease():
    operation = make_claim(make_accepted()).operation
    earlier(operation, "lease_expires_at")
    return operation.id


@plants("a failed operation has no dead letter that waits, or one that has not failed has")
def failure_without_letter():
    operation = make_failed()
    DeadLetter.objects.all().delete()
    return operation.id


@plants("a failed operation has no dead letter that waits, or one that has not failed has")
def failure_whose_letter_is_resolved():
    operation = make_failed()
    DeadLetter.objects.update(resolution="discarded", resolved_at=F("created_at"))
    return operation.id


@plants("a failed operation has no dead letter that waits, or one that has not failed has")
def letter_of_a_success():
    operation = make_synced(1)
    DeadLetter.objects.create(
        operation=operation,
        job_type="x.y",
        reason="bug",
        category="bug",
        attempts=1,
        runs=1,
        schema_version=1,
    )
    return operation.id


@plants("a step of an operation is recorded twice")
def step_done_twice():
    without_constraint("one_effect_a_step", "operations_effect")
    operation = make_accepted()
    for run in (1, 2):
        Effect.objects.create(operation=operation, step="reserved", run=run)
    return operation.id


@plants("a move is not one of the lifecycle's")
def move_for_no_reason():
    return rewrite(make_accepted(), "queued", reason="interrupted")


@plants("a move does not begin where the one before it ended")
def move_from_elsewhere():
    return rewrite(make_claim(make_accepted()).operation, "processing", from_status="retry_scheduled")


@plants("a final status was left")
def success_undone():
    operation = make_synced(1)
    Transition.objects.create(
        operation_id=operation.id,
        from_status="succeeded",
        to_status="queued",
        reason="replayed",
        run=1,
        attempt=1,
        actor="nobody",
        at=operation.created_at,
    )
    return operation.id


@plants("an operation is not where its history ends")
def row_moved_in_silence():
    return change(make_accepted(), status="retry_scheduled")


@plants("an operation is not where its history ends")
def row_without_history():
    operation = make_accepted()
    Transition.objects.all().delete()
    return operation.id


@plants("a run was ended by another than the worker that held it")
def finish_by_another_worker():
    return rewrite(make_synced(1), "succeeded", actor="worker-b/2")


@plants("a resource's applied version is not that of the operation that applied it")
def version_of_nobody():
    make_synced(1)
    ResourceFence.objects.update(applied_version=99)
    return "inventory:user:7"


@plants("a resource's applied version is not that of the operation that applied it")
def version_of_a_failure():
    operation = make_synced(1)
    failed = make_failed()
    ResourceFence.objects.filter(applied_by=operation.id).update(applied_by=failed.id)
    return "inventory:user:7"


@plants("a key names an operation of another user, job or key")
def key_of_another():
    operation = make_accepted()
    IdempotencyRecord.objects.update(idempotency_key="k-2")
    return operation.id


@plants("a key names an operation of another user, job or key")
def key_of_another_user():
    operation = make_accepted()
    IdempotencyRecord.objects.update(user=make_user())
    return operation.id


@plants("two operations share a user, job and key")
def key_used_twice():
    user = make_user()
    first, second = (accept.accept(make_request(user, key=key)).operation for key in ("k-1", "k-2"))
    change(second, idempotency_key="k-1")
    return min(first.id, second.id, key=str)


@plants("an operation had another number of runs than its history tells")
def run_that_history_forgot():
    return change(make_accepted(), runs=1)


@plants("an operation had more attempts than its job allows")
def attempt_too_many():
    without_constraint("operation_attempts_bounded")
    return change(make_claim(make_accepted()).operation, attempt=6)  # Backoff(5, 15, 45, 120) makes five


@plants("an operation was begun more often than its attempts allow")
def attempts_that_were_not_counted():
    operation = make_accepted(job=make_job(name="inventory.sync", retry=Backoff()))
    for run in (1, 2):
        for source, to, reason in (("queued", "processing", ""), ("processing", "queued", "interrupted")):
            Transition.objects.create(
                operation=operation,
                from_status=source,
                to_status=to,
                reason=reason,
                run=run,
                attempt=1,
                at=operation.created_at,
            )
    return change(operation, runs=2, attempt=1)


@plants("an operation is done although an effect of it may have been sent, and nobody knows")
def effect_forgotten():
    operation = make_operation(status="succeeded")
    sent(operation)
    return operation.id


@plants("an effect was sent under another key than its own")
def effect_under_another_key():
    operation = make_operation(status="succeeded")
    sent(operation, certainty="confirmed", key="a key of its own")
    return operation.id


@plants("a run that came too late has learned that an effect was done which is recorded as not done")
def evidence_of_another_world():
    operation = make_operation(status="failed_permanent")
    sent(operation, certainty="not_sent")
    EffectEvidence.objects.create(
        operation=operation, step="charge", generation=1, run=1, certainty="confirmed"
    )
    return operation.id


@plants("an operation that has turned back has left something behind")
def something_left_behind():
    operation = make_operation(status="ignored", compensating_for="ignored cancelled")
    Effect.objects.create(operation=operation, step="reserved", run=1)
    return operation.id


def sent(operation, **changes):
    """Write an effect that was sent."""
    fields = {"certainty": "maybe_sent", "key": f"{operation.id}:charge:g1", "sent_at": Now(), "request": {}}
    Effect.objects.create(operation=operation, step="charge", kind="outside", run=1, **fields | changes)


@plants("an attempt began before its pause was over")
def attempt_too_soon():
    claim = make_claim(make_accepted())
    lifecycle.retry(claim, failure=make_failure(), delay_seconds=0)
    return make_claim(claim.operation).operation.id


@plants("an operation was handed back without an attempt more often than allowed")
def interruptions_without_end():
    return change(make_claim(make_accepted()).operation, attempt=0, runs=11, interruptions=11)


@plants("an older version was applied after a newer one")
def older_after_newer():
    first = make_synced(1)
    second = make_synced(2)
    change(first, resource_version=3)
    return second.id


@plants("work owed after a commit is long overdue")
def debt_of_yesterday():
    operation = make_accepted()
    AfterCommit.objects.create(
        operation=operation, run_at=operation.run_at, created_at=operation.created_at - HOUR
    )
    return operation.id


def succeed_after_an_interruption():
    claim = make_claim(make_accepted())
    lifecycle.hand_back(claim, error="the worker ends")
    return lifecycle.succeed(make_claim(claim.operation), hard_limit=40, version=1, digest="of 1").id


def bring_what_is_there():
    claim = make_claim(make_accepted())
    return lifecycle.ignore(claim, reason="duplicate").id


def state_what_is_there(wait=False):
    claim, other = make_claim(make_accepted()), make_accepted()
    if wait:
        lifecycle.wait(other.id, reason="lock_contended", waiting_for="a lock", actor="worker-a/1")
    lifecycle.succeed(claim, hard_limit=40, version=2, digest="of 2")
    change(other, resource_version=2, resource=claim.operation.resource)
    return lifecycle.pass_over(other.id, reason="duplicate", actor="worker-a/1").id


def wait_and_state_what_is_there():
    return state_what_is_there(wait=True)


def wait_twice_and_run_out_of_time():
    operation = make_accepted()
    for reason in ("lock_contended", "dependency_unavailable"):
        lifecycle.wait(operation.id, reason=reason, waiting_for="a lock", actor="worker-a/1")
        earlier(operation, "run_at")
    return run_out_of_time(operation)


def run_out_of_time(operation=None):
    operation = make_accepted() if operation is None else operation
    earlier(operation, "deadline_at", by=2 * HOUR)
    relay.end_overdue()
    return operation.id


def lose_a_worker():
    claim = make_claim(make_accepted())
    earlier(claim.operation, "lease_expires_at")
    take_back()
    return make_claim(claim.operation).operation.id


def fail_and_succeed_when_replayed():
    failed = make_failed()
    replays.replay(failed.dead_letters.get().id, actor="user:ops", reason="it was mended")
    return lifecycle.succeed(make_claim(failed), hard_limit=40, version=1, digest="of 1").id


def fail_and_be_discarded():
    failed = make_failed()
    return replays.discard(failed.dead_letters.get().id, actor="user:ops", reason="of no use").id


MOVES = [
    succeed_after_an_interruption,
    bring_what_is_there,
    state_what_is_there,
    wait_and_state_what_is_there,
    wait_twice_and_run_out_of_time,
    run_out_of_time,
    lose_a_worker,
    fail_and_succeed_when_replayed,
    fail_and_be_discarded,
]


@plants("a dependency is shut and its jobs are not held, or it is not and they are")
def shut_dependency_without_a_hold():
    return Dependency.objects.create(name="warehouse", state="open", changed_at=Now()).name


@plants("a dependency is shut and its jobs are not held, or it is not and they are")
def hold_of_a_dependency_that_is_closed():
    Dependency.objects.create(name="warehouse", changed_at=Now())
    Hold.objects.create(scope="dependency:warehouse", kind="breaker")
    return "warehouse"


@plants("a dependency is shut and its jobs are not held, or it is not and they are")
def hold_of_no_dependency():
    return Hold.objects.create(scope="dependency:warehouse", kind="breaker").scope


class TestViolations:
    @pytest.mark.parametrize(("what", "plant"), PLANTS)
    def test_name_what_was_planted(self, what, plant):
        [check] = [check for check in verify.CHECKS if check.what == what]

        named = str(plant())

        assert (check.invariant, what, [named]) in verify.violations()

    def test_have_a_plant_for_every_check(self):
        assert {check.what for check in verify.CHECKS} == {plant.values[0] for plant in PLANTS}

    def test_are_none_where_nothing_ever_happened(self):
        assert verify.violations() == []

    def test_are_none_where_a_key_was_taken_over(self):
        first, second = make_accepted(), make_accepted()
        done_at = second.created_at - timedelta(days=1)
        Operation.objects.filter(id=first.id).update(
            status="ignored", reason="cancelled", finished_at=done_at, created_at=done_at
        )
        same = {"owner": first.owner, "idempotency_key": "k-1"}
        Operation.objects.filter(id__in=[first.id, second.id]).update(**same)
        shared = "two operations share a user, job and key"

        assert [each for each in verify.violations() if each.what == shared] == []

    def test_are_none_where_who_applied_a_version_was_purged(self):
        ResourceFence.objects.create(resource="r", applied_version=3, applied_by=uuid.uuid4())

        assert verify.violations() == []

    def test_name_an_id_that_was_answered_and_is_not_there(self):
        operation = make_accepted()

        assert verify.violations([str(operation.id), NOWHERE, NOWHERE]) == [
            ("I1", "a client was answered 202 for an operation that does not exist", [NOWHERE])
        ]

    def test_list_only_the_first_of_many_rows(self):
        for _ in range(22):
            row_moved_in_silence()

        [violation] = verify.violations()

        assert len(violation.rows) == 21
        assert violation.rows[-1] == "and 2 more"

    @pytest.mark.django_db(transaction=True)
    def test_are_none_after_every_move_there_is(self):
        ids = [str(move()) for move in MOVES]

        assert verify.violations(ids) == []
        seen = set(Transition.objects.values_list("from_status", "to_status"))
        assert seen == {(move.source, move.to) for move in Operation.MOVES}


class TestCommand:
    def test_says_how_many_checks_were_kept(self):
        printed = run_command()

        assert (
            printed.splitlines()[-1]
            == f"{len(verify.CHECKS)} checks of I1, I2, I3, I4, I5, I7, I8, I9: 0 broken"
        )
        assert "I13 not by SQL: give --accepted" in printed

    def test_exits_with_one_and_names_what_is_broken(self):
        operation_id = row_moved_in_silence()

        printed = run_command(exits_with=1)

        assert printed.startswith(f"I3 broken: an operation is not where its history ends: {operation_id}\n")
        assert printed.endswith(": 1 broken\n")

    def test_tells_programs_the_same(self):
        operation_id = row_moved_in_silence()

        report = json.loads(run_command("--json", exits_with=1))

        assert report["violations"] == [
            {
                "invariant": "I3",
                "what": "an operation is not where its history ends",
                "rows": [str(operation_id)],
            }
        ]
        assert {*report["checked"], *report["not_by_sql"]} == {f"I{number}" for number in range(1, 14)}

    def test_tells_programs_that_nothing_is_broken(self):
        assert json.loads(run_command("--json"))["violations"] == []

    def test_looks_for_the_ids_in_a_file(self, tmp_path):
        answered = tmp_path / "answered"
        answered.write_text(f"{make_accepted().id}\n{NOWHERE}\n")

        printed = run_command("--accepted", str(answered), exits_with=1)

        assert f"answered 202 for an operation that does not exist: {NOWHERE}\n" in printed

    def test_is_content_with_ids_that_are_there(self, tmp_path):
        answered = tmp_path / "answered"
        answered.write_text(f"{make_accepted().id}\n")

        assert run_command("--accepted", str(answered)).endswith(": 0 broken\n")

    def test_refuses_a_file_that_it_cannot_read(self, tmp_path):
        with pytest.raises(CommandError, match=r"can't read the accepted ids from .*/absent: No such file"):
            run_command("--accepted", str(tmp_path / "absent"))


def run_command(*arguments, exits_with=None):
    written = StringIO()
    if exits_with is None:
        call_command("verify", *arguments, stdout=written)
        return written.getvalue()
    with pytest.raises(SystemExit) as ended:
        call_command("verify", *arguments, stdout=written)
    assert ended.value.code == exits_with
    return written.getvalue()
