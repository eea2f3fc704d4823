"""What a person may do with a dead letter, what is refused, and what is kept of both."""

from datetime import timedelta
from functools import partial

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from operations import jobs, lifecycle, replays
from operations.models import (
    AuditEntry,
    DeadLetter,
    IdempotencyRecord,
    Operation,
    Resolution,
    Status,
    Transition,
)
from operations.replays import Refused
from tests.factories import (
    history,
    make_claim,
    make_dead_letter,
    make_failure,
    make_job,
    make_operation,
    work,
)
from tests.threads import together

pytestmark = pytest.mark.django_db

WHY = "the provider was repaired"
ACTS = {"replay": replays.replay, "discard": replays.discard}
ENDS = {"replay": (Status.QUEUED, "replayed"), "discard": (Status.IGNORED, "discarded")}
TAKES = {"replay": Resolution.REPLAYING, "discard": Resolution.DISCARDED}
CLOSED = [resolution for resolution in Resolution if resolution != Resolution.WAITING]
NOT_FAILED = [status for status in Status if status != Status.FAILED_PERMANENT]


def make_closed(resolution):
    at = None if resolution == Resolution.REPLAYING else timezone.now()
    return make_dead_letter(resolution=resolution, resolved_at=at)


def standing(letter):
    """Give all that an act could change."""
    return (
        Operation.objects.filter(id=letter.operation_id).values().get(),
        DeadLetter.objects.filter(id=letter.id).values().get(),
        Transition.objects.count(),
        AuditEntry.objects.count(),
    )


@pytest.mark.parametrize("act", ACTS)
class TestEitherAct:
    def test_is_a_move_and_an_audit_entry_in_the_name_of_who_did_it(self, act):
        letter = make_dead_letter()

        operation = ACTS[act](letter.id, actor="user:ops", reason=WHY, request_id="r-9")

        status, reason = ENDS[act]
        assert (operation.status, operation.reason) == (status, reason)
        assert history(operation) == [(Status.FAILED_PERMANENT, status, reason)]
        entry = AuditEntry.objects.get()
        assert (entry.actor, entry.action, entry.target) == ("user:ops", act, f"operation:{operation.id}")
        assert (entry.reason, entry.request_id) == (WHY, "r-9")
        assert entry.before == {"status": "failed_permanent", "reason": "bug", "dead_letter": letter.id}
        assert entry.after == {"status": status, "reason": reason, "replays": operation.replays}

    def test_says_what_became_of_the_letter(self, act):
        letter = make_dead_letter()

        ACTS[act](letter.id, actor="user:ops", reason=WHY)

        letter.refresh_from_db()
        assert letter.resolution == TAKES[act]

    @pytest.mark.parametrize("reason", ["", "  \n"])
    def test_is_refused_without_a_reason(self, act, reason):
        letter = make_dead_letter()
        before = standing(letter)

        with pytest.raises(Refused, match="say why"):
            ACTS[act](letter.id, actor="user:ops", reason=reason)

        assert standing(letter) == before

    @pytest.mark.parametrize("resolution", CLOSED)
    def test_is_refused_once_the_letter_is_resolved(self, act, resolution):
        letter = make_closed(resolution)
        before = standing(letter)

        with pytest.raises(Refused, match=f"dead letter {letter.id} is .* already"):
            ACTS[act](letter.id, actor="user:ops", reason=WHY)

        assert standing(letter) == before

    @pytest.mark.parametrize("status", NOT_FAILED)
    def test_is_refused_to_an_operation_that_has_not_failed(self, act, status):
        """A succeeded one above all: nothing may make it run again."""
        letter = make_dead_letter(make_operation(status=status))
        before = standing(letter)

        with pytest.raises(Refused, match=f"is {status}, so nothing can be {act}"):
            ACTS[act](letter.id, actor="user:ops", reason=WHY)

        assert standing(letter) == before

    def test_is_refused_where_there_is_no_letter(self, act):
        with pytest.raises(Refused, match="there is no dead letter 0"):
            ACTS[act](0, actor="user:ops", reason=WHY)

    def test_happens_not_at_all_when_it_ends_halfway(self, act, monkeypatch):
        """The process dies after the move and before the audit entry: neither is there."""
        letter = make_dead_letter()
        before = standing(letter)
        monkeypatch.setattr(AuditEntry.objects, "create", killed)

        with pytest.raises(SystemExit):
            ACTS[act](letter.id, actor="user:ops", reason=WHY)

        assert standing(letter) == before

    @pytest.mark.django_db(transaction=True)
    def test_is_done_once_by_two_at_the_same_moment(self, act):
        letter = make_dead_letter()
        rivals = [partial(attempt, ACTS[act], letter.id, actor) for actor in ("user:one", "user:two")]

        outcomes = together(*rivals)

        winner = AuditEntry.objects.get().actor
        assert sorted(outcomes) == sorted([winner, "refused"])
        assert len(history(letter.operation)) == 1

    def test_leaves_an_entry_that_nobody_can_rewrite(self, act):
        letter = make_dead_letter()
        ACTS[act](letter.id, actor="user:ops", reason=WHY)

        for change in (
            partial(AuditEntry.objects.update, actor="user:other"),
            AuditEntry.objects.all().delete,
        ):
            with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
                change()


def killed(**columns):
    raise SystemExit


def attempt(act, letter_id, actor):
    """Give the actor who has done it, or "refused"."""
    try:
        act(letter_id, actor=actor, reason=WHY)
    except Refused:
        return "refused"
    return actor


class TestReplay:
    def test_gives_a_fresh_budget_and_keeps_what_was(self):
        operation = make_operation(
            status=Status.FAILED_PERMANENT,
            runs=7,
            attempt=5,
            interruptions=2,
            waits=3,
            deadline_at=timezone.now() - timedelta(days=1),
        )

        replayed = replays.replay(make_dead_letter(operation).id, actor="user:ops", reason=WHY)

        contract = jobs.get("inventory.sync")
        assert (replayed.attempt, replayed.interruptions, replayed.waits) == (0, 0, 0)
        assert (replayed.max_attempts, replayed.runs, replayed.replays) == (contract.retry.attempts, 7, 1)
        left = replayed.deadline_at - timezone.now()
        assert left == pytest.approx(contract.deadline, abs=timedelta(seconds=5))
        assert (replayed.finished_at, replayed.claim_token) == (None, operation.claim_token)

    def test_takes_the_budget_of_todays_contract(self, monkeypatch):
        """The job may have been mended since: the row's old limits do not bind it."""
        operation = make_operation(status=Status.FAILED_PERMANENT, max_attempts=1)

        replayed = replays.replay(make_dead_letter(operation).id, actor="user:ops", reason=WHY)

        assert replayed.max_attempts == 5  # Backoff(5, 15, 45, 120)

    @pytest.mark.django_db(transaction=True)
    def test_runs_again_under_the_same_id_and_key_with_its_history(self, user, provider):
        operation = make_failed(user)
        letter = DeadLetter.objects.get()
        provider.has(version=4, sword=1)

        replays.replay(letter.id, actor="user:ops", reason=WHY)
        done = work(operation)

        assert (done.id, done.status, done.idempotency_key) == (operation.id, Status.SUCCEEDED, "k-1")
        assert IdempotencyRecord.objects.get().operation_id == operation.id
        assert history(done) == [
            (Status.QUEUED, Status.PROCESSING, ""),
            (Status.PROCESSING, Status.FAILED_PERMANENT, "attempts_exhausted"),
            (Status.FAILED_PERMANENT, Status.QUEUED, "replayed"),
            (Status.QUEUED, Status.PROCESSING, ""),
            (Status.PROCESSING, Status.SUCCEEDED, ""),
        ]

    @pytest.mark.django_db(transaction=True)
    def test_closes_the_letter_when_the_operation_succeeds(self, user, provider):
        operation = make_failed(user)
        letter = DeadLetter.objects.get()
        provider.has(version=4, sword=1)
        replays.replay(letter.id, actor="user:ops", reason=WHY)
        letter.refresh_from_db()
        assert (letter.resolution, letter.resolved_at) == (Resolution.REPLAYING, None)

        work(operation)

        letter.refresh_from_db()
        assert letter.resolution == Resolution.REPLAYED_OK
        assert letter.resolved_at is not None

    def test_leaves_a_second_letter_when_it_fails_again(self, user):
        operation = make_failed(user)
        first = DeadLetter.objects.get()
        replays.replay(first.id, actor="user:ops", reason=WHY)

        fail(operation)

        first.refresh_from_db()
        second = DeadLetter.objects.exclude(id=first.id).get()
        assert first.resolution == Resolution.REPLAYED_FAILED
        assert (second.operation_id, second.resolution) == (operation.id, Resolution.WAITING)
        again = replays.replay(second.id, actor="user:ops", reason="once more")
        assert again.replays == 2

    @pytest.mark.django_db(transaction=True)
    def test_closes_the_letter_when_another_has_done_the_work(self, user, provider):
        """A replay that brings old news ends as ignored: nothing is left for a person to do."""
        provider.has(version=9, sword=1)
        work(make_operation(owner=user))
        operation = make_failed(user, idempotency_key="k-2")
        letter = DeadLetter.objects.get()
        replays.replay(letter.id, actor="user:ops", reason=WHY)
        provider.has(version=8, sword=2)

        ended = work(operation)

        letter.refresh_from_db()
        assert (ended.status, ended.reason) == (Status.IGNORED, "stale_version")
        assert letter.resolution == Resolution.REPLAYED_OK

    @pytest.mark.django_db(transaction=True)
    def test_tells_a_worker_at_once(self, broker):
        letter = make_dead_letter()

        operation = replays.replay(letter.id, actor="user:ops", reason=WHY)

        [message] = broker.messages()
        assert str(operation.id) in message["headers"]["argsrepr"]
        operation.refresh_from_db()
        assert operation.published_at is not None

    @pytest.mark.django_db(transaction=True)
    def test_leaves_it_to_the_relay_when_the_broker_is_away(self, broker_away):
        operation = replays.replay(make_dead_letter().id, actor="user:ops", reason=WHY)

        operation.refresh_from_db()
        assert (operation.status, operation.published_at) == (Status.QUEUED, None)

    def test_is_refused_where_no_code_knows_the_job(self):
        job = make_job(name="tests.forgotten")
        letter = make_dead_letter(make_operation(job=job, status=Status.FAILED_PERMANENT))
        before = standing(letter)

        with pytest.raises(Refused, match="no job is called 'tests\\.forgotten'"):
            replays.replay(letter.id, actor="user:ops", reason=WHY)

        assert standing(letter) == before


class TestDiscard:
    def test_ends_the_operation_and_the_letter_for_good(self):
        letter = make_dead_letter()

        operation = replays.discard(letter.id, actor="user:ops", reason=WHY)

        letter.refresh_from_db()
        assert operation.finished_at is not None
        assert letter.resolved_at is not None
        with pytest.raises(Refused):
            replays.replay(letter.id, actor="user:ops", reason=WHY)

    def test_works_where_no_code_knows_the_job(self):
        job = make_job(name="tests.forgotten")
        letter = make_dead_letter(make_operation(job=job, status=Status.FAILED_PERMANENT))

        assert replays.discard(letter.id, actor="user:ops", reason=WHY).status == Status.IGNORED


class TestPreview:
    def test_promises_a_replay_with_so_many_attempts(self):
        seen = replays.preview(make_dead_letter())

        assert seen.eligible
        assert "same id and key, with 5 fresh attempts" in seen.why

    def test_tells_that_the_owner_has_cancelled_it(self):
        dead = make_operation(status="failed_permanent", cancel_requested_at=timezone.now())

        assert "its owner has cancelled it" in replays.preview(make_dead_letter(dead)).why

    @pytest.mark.parametrize("reason", sorted(replays.NOT_BY_REPEATING))
    def test_warns_where_repeating_alone_will_not_help(self, reason):
        seen = replays.preview(make_dead_letter(reason=reason))

        assert seen.eligible
        assert f"does not mend {reason}" in seen.why

    @pytest.mark.parametrize("resolution", CLOSED)
    def test_says_that_it_is_resolved(self, resolution):
        seen = replays.preview(make_closed(resolution))

        assert not seen.eligible
        assert "already" in seen.why

    def test_says_that_the_operation_has_moved_on(self):
        seen = replays.preview(make_dead_letter(make_operation(status=Status.SUCCEEDED)))

        assert (seen.eligible, seen.why) == (False, "its operation is succeeded")

    def test_says_that_no_code_knows_the_job(self):
        job = make_job(name="tests.forgotten")
        letter = make_dead_letter(make_operation(job=job, status=Status.FAILED_PERMANENT))

        seen = replays.preview(letter)

        assert not seen.eligible
        assert "no job is called 'tests.forgotten'" in seen.why

    def test_changes_nothing(self):
        letter = make_dead_letter()
        before = standing(letter)

        replays.preview(letter)

        assert standing(letter) == before


def make_failed(user, idempotency_key="k-1"):
    """Make an operation with a key that has failed in its only run, with the letter that bury wrote."""
    operation = make_operation(owner=user, idempotency_key=idempotency_key, max_attempts=1)
    IdempotencyRecord.objects.create(
        user=user,
        job_type=operation.job_type,
        idempotency_key=idempotency_key,
        request_hash="v1:0",
        operation=operation,
    )
    fail(operation)
    return operation


def fail(operation):
    lifecycle.fail(make_claim(operation), reason="attempts_exhausted", failure=make_failure())
