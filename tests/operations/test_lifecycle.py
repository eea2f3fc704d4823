"""Every move: it happens, it is refused to whoever may not make it, and it leaves one line of history."""

import uuid
from datetime import timedelta

import pytest
from django.db import IntegrityError
from django.utils import timezone

from operations import claims, jobs, lifecycle
from operations.models import (
    AfterCommit,
    DeadLetter,
    IdempotencyRecord,
    Operation,
    OperationData,
    ResourceFence,
    Status,
    Transition,
)
from tests.factories import (
    earlier,
    history,
    make_claim,
    make_dead_letter,
    make_failure,
    make_operation,
    make_user,
)

pytestmark = pytest.mark.django_db

JOB = "inventory.sync"
HELD = "lock inventory:user:7 held by another"
NOT_WAITING = [Status.PROCESSING, Status.SUCCEEDED, Status.FAILED_PERMANENT, Status.IGNORED]
NOT_PROCESSING = [status for status in Status.values if status != Status.PROCESSING]


def claim_of(operation, token=None):
    """Say that one holds an operation, whether or not it is true."""
    return claims.Claim(operation, token or uuid.uuid4(), None, None, None, "")


def row(operation):
    return Operation.objects.filter(id=operation.id).values().get()


def owed(operation):
    return AfterCommit.objects.filter(operation_id=operation.id)


# Every move that only the claim's holder may make.
BY_HOLDER = {
    "succeed": lambda claim: lifecycle.succeed(claim, hard_limit=40, version=None, digest=""),
    "ignore": lambda claim: lifecycle.ignore(claim, reason="stale_version"),
    "retry": lambda claim: lifecycle.retry(claim, failure=make_failure(), delay_seconds=5),
    "fail": lambda claim: lifecycle.fail(claim, reason="bug", failure=make_failure(category="bug")),
    "hand_back": lambda claim: lifecycle.hand_back(claim, error="the worker drains"),
}
ENDS_IN = {
    "succeed": (Status.SUCCEEDED, ""),
    "ignore": (Status.IGNORED, "stale_version"),
    "retry": (Status.RETRY_SCHEDULED, "timeout"),
    "fail": (Status.FAILED_PERMANENT, "bug"),
    "hand_back": (Status.QUEUED, "interrupted"),
}


@pytest.mark.parametrize("name", BY_HOLDER)
class TestEveryMoveOfTheHolder:
    def test_happens_once_with_one_line_of_history(self, name):
        claim = make_claim()

        moved = BY_HOLDER[name](claim)
        again = BY_HOLDER[name](claim)

        assert (moved.status, moved.reason) == ENDS_IN[name]
        assert again is None
        assert history(claim.operation)[1:] == [(Status.PROCESSING, *ENDS_IN[name])]

    def test_ends_the_lease_and_keeps_the_token(self, name):
        claim = make_claim()

        moved = BY_HOLDER[name](claim)

        assert (moved.lease_expires_at, moved.claimed_by) == (None, "")
        assert moved.claim_token == claim.token

    def test_is_a_new_version_for_who_reads(self, name):
        claim = make_claim()

        moved = BY_HOLDER[name](claim)

        assert moved.version == claim.operation.version + 1

    def test_owes_the_resource_its_lock_and_its_waiters(self, name):
        claim = make_claim()

        moved = BY_HOLDER[name](claim)

        [debt] = owed(moved)
        assert debt.id == moved.after_commit_id
        assert (debt.resource, debt.claim_token) == (moved.resource, claim.token)

    def test_owes_nothing_without_a_resource(self, name):
        claim = make_claim(resource="")

        moved = BY_HOLDER[name](claim)

        assert moved.after_commit_id is None
        assert not owed(moved).exists()

    def test_is_refused_to_another_token(self, name):
        claim = make_claim()
        before = row(claim.operation)

        assert BY_HOLDER[name](claim._replace(token=uuid.uuid4())) is None

        assert row(claim.operation) == before
        assert len(history(claim.operation)) == 1

    def test_is_refused_once_the_lease_is_over(self, name):
        claim = make_claim()
        earlier(claim.operation, "lease_expires_at")
        before = row(claim.operation)

        assert BY_HOLDER[name](claim) is None

        assert row(claim.operation) == before

    @pytest.mark.parametrize("status", NOT_PROCESSING)
    def test_is_refused_in_another_status(self, name, status):
        operation = make_operation(status=status, claim_token=uuid.uuid4())
        before = row(operation)

        assert BY_HOLDER[name](claim_of(operation, operation.claim_token)) is None

        assert row(operation) == before
        assert (history(operation), list(owed(operation))) == ([], [])
        assert not DeadLetter.objects.exists()


class TestAccept:
    def insert(self, user, **changes):
        values = {
            "id": uuid.uuid4(),
            "job_type": JOB,
            "schema_version": 1,
            "owner_id": user.pk,
            "source": "api",
            "max_attempts": 5,
            "deadline": timedelta(hours=1),
            "resource": f"inventory:user:{user.pk}",
            "seen_version": None,
            "payload": {"user_id": user.pk},
            "idempotency_key": "k-1",
            "request_hash": "v1:0",
            "key_ttl": timedelta(hours=24),
            "request_id": "r-1",
            "correlation_id": "c-1",
            "actor": f"user:{user.pk}",
        }
        found = lifecycle.accept(**values | changes)
        return found.operation if found is not None and found.request_hash is None else found

    def test_writes_row_key_payload_and_history_at_once(self, user):
        operation = self.insert(user)

        assert Operation.objects.get() == operation
        assert (operation.status, operation.reason, operation.version) == (Status.QUEUED, "accepted", 1)
        assert operation.data.payload == {"user_id": user.pk}
        assert IdempotencyRecord.objects.get().operation == operation
        assert history(operation) == [("", Status.QUEUED, "accepted")]

    def test_is_due_at_once_and_believed_to_be_published(self, user):
        operation = self.insert(user)

        assert operation.run_at == operation.created_at
        assert operation.published_at is not None
        assert operation.deadline_at - operation.created_at == pytest.approx(
            timedelta(hours=1), abs=timedelta(seconds=1)
        )

    def test_gives_what_a_taken_key_names_and_the_digest_of_its_request(self, user):
        first = self.insert(user, request_hash="v1:of-the-first")
        OperationData.objects.update(result={"items": 2})

        found = self.insert(user, id=uuid.uuid4(), request_hash="v1:of-another")

        assert (found.operation, found.request_hash) == (first, "v1:of-the-first")
        assert (found.result, found.error) == ({"items": 2}, None)
        assert (Operation.objects.count(), Transition.objects.count()) == (1, 1)

    def test_takes_the_same_key_from_another_user_and_for_another_job(self, user):
        self.insert(user)

        assert self.insert(make_user()) is not None
        assert self.insert(user, job_type="tests.work") is not None

    @pytest.mark.parametrize("seen", ["0", "4", "6", 'W/"5', ""])
    def test_gives_nothing_when_the_version_has_moved(self, user, seen):
        ResourceFence.objects.create(resource=f"inventory:user:{user.pk}", applied_version=5)

        assert self.insert(user, seen_version=seen) is None

        assert not IdempotencyRecord.objects.exists()

    def test_takes_the_version_that_is_applied(self, user):
        ResourceFence.objects.create(resource=f"inventory:user:{user.pk}", applied_version=5)

        assert self.insert(user, seen_version="5") is not None

    def test_takes_zero_for_a_resource_that_was_never_written(self, user):
        assert self.insert(user, seen_version="0") is not None


class TestLook:
    def test_gives_the_row_with_its_payload(self):
        operation = make_operation()

        glance = lifecycle.look(operation.id, job_type=JOB)

        assert glance.operation == operation
        assert glance.payload == {"user_id": operation.owner_id}
        assert (glance.due, glance.overdue) == (True, False)

    def test_gives_nothing_for_another_job(self):
        assert lifecycle.look(make_operation().id, job_type="tests.work") is None

    def test_gives_nothing_for_an_unknown_id(self):
        assert lifecycle.look(uuid.uuid4(), job_type=JOB) is None

    @pytest.mark.parametrize("status", NOT_WAITING)
    def test_sees_that_nothing_waits(self, status):
        operation = make_operation(status=status)

        assert lifecycle.look(operation.id, job_type=JOB).due is False

    def test_sees_that_it_is_too_early(self):
        operation = make_operation(run_at=timezone.now() + timedelta(minutes=1))

        assert lifecycle.look(operation.id, job_type=JOB).due is False

    def test_sees_that_the_deadline_has_passed(self):
        operation = make_operation(deadline_at=timezone.now() - timedelta(seconds=1))

        assert lifecycle.look(operation.id, job_type=JOB).overdue is True


class TestWait:
    def wait(self, operation, reason="lock_contended", waiting_for=HELD):
        return lifecycle.wait(operation.id, reason=reason, waiting_for=waiting_for, actor="worker-a/1")

    @pytest.mark.parametrize("status", [Status.QUEUED, Status.RETRY_SCHEDULED])
    def test_puts_off_without_spending_an_attempt(self, status, settings):
        operation = make_operation(status=status)

        waiting = self.wait(operation)

        assert (waiting.status, waiting.reason) == (Status.RETRY_SCHEDULED, "lock_contended")
        assert (waiting.attempt, waiting.runs, waiting.waits) == (operation.attempt, operation.runs, 1)
        assert (waiting.waiting_for, waiting.published_at) == (HELD, None)
        # LOCK_POLL_SECONDS from now, and "now" was no more than a second ago.
        left = waiting.run_at - timezone.now()
        assert timedelta(seconds=settings.LOCK_POLL_SECONDS - 1) < left
        assert left <= timedelta(seconds=settings.LOCK_POLL_SECONDS)

    def test_is_one_move_however_often_it_waits(self):
        operation = make_operation()

        first = self.wait(operation)
        earlier(operation, "run_at")
        second = self.wait(operation)
        earlier(operation, "run_at")
        third = self.wait(operation)

        assert [first.waits, second.waits, third.waits] == [1, 2, 3]
        assert history(operation) == [(Status.QUEUED, Status.RETRY_SCHEDULED, "lock_contended")]

    def test_is_another_move_for_another_reason(self):
        operation = make_operation()

        self.wait(operation)
        earlier(operation, "run_at")
        self.wait(operation, reason="dependency_unavailable")

        assert [reason for _, _, reason in history(operation)] == ["lock_contended", "dependency_unavailable"]

    @pytest.mark.parametrize("reason", ["timeout", "lock_contended"])
    def test_cuts_no_pause_short(self, reason):
        """Of two messages, one ran it and it failed; the late other finds its resource locked."""
        later = timezone.now() + timedelta(minutes=2)
        operation = make_operation(status="retry_scheduled", reason=reason, run_at=later)

        assert self.wait(operation) is None
        assert row(operation)["run_at"] == later

    @pytest.mark.parametrize("status", NOT_WAITING)
    def test_is_refused_when_nothing_waits(self, status):
        operation = make_operation(status=status)
        before = row(operation)

        assert self.wait(operation) is None

        assert row(operation) == before

    def test_owes_nothing(self):
        assert self.wait(make_operation()).after_commit_id is None

    def test_keeps_what_it_waits_for_within_its_column(self):
        assert len(self.wait(make_operation(), waiting_for="x" * 1000).waiting_for) == 300


class TestWake:
    def waiting(self, **changes):
        fields = {
            "status": Status.RETRY_SCHEDULED,
            "reason": "lock_contended",
            "resource": "inventory:user:7",
            "run_at": timezone.now() + timedelta(minutes=5),
        }
        return make_operation(**fields | changes)

    def test_makes_the_oldest_waiter_due_for_publishing(self):
        young = self.waiting(created_at=timezone.now())
        old = self.waiting(created_at=timezone.now() - timedelta(minutes=1))

        woken = lifecycle.wake("inventory:user:7")

        assert woken.id == old.id
        assert woken.run_at <= timezone.now()
        assert woken.published_at is not None
        assert row(young)["published_at"] is None

    def test_is_no_move(self):
        woken = self.waiting()

        lifecycle.wake("inventory:user:7")

        assert history(woken) == []

    @pytest.mark.parametrize("changes", [{"resource": "inventory:user:8"}, {"reason": "timeout"}])
    def test_leaves_others_asleep(self, changes):
        self.waiting(**changes)

        assert lifecycle.wake("inventory:user:7") is None


class TestRefuse:
    def refuse(self, operation, reason="invalid_input"):
        return lifecycle.refuse(operation.id, reason=reason, failure=make_failure(), actor="worker-a/1")

    @pytest.mark.parametrize("status", [Status.QUEUED, Status.RETRY_SCHEDULED])
    def test_ends_what_waits_as_a_dead_letter(self, status):
        operation = make_operation(status=status)

        refused = self.refuse(operation)

        assert (refused.status, refused.reason) == (Status.FAILED_PERMANENT, "invalid_input")
        assert refused.attempt == operation.attempt
        assert refused.finished_at is not None
        assert history(operation) == [(status, Status.FAILED_PERMANENT, "invalid_input")]
        assert DeadLetter.objects.get().operation == operation

    def test_wakes_who_waits_for_the_resource(self):
        refused = self.refuse(make_operation())

        assert owed(refused).get().resource == refused.resource

    @pytest.mark.parametrize("status", NOT_WAITING)
    def test_does_not_touch_the_rest(self, status):
        operation = make_operation(status=status)
        before = row(operation)

        assert self.refuse(operation) is None

        assert row(operation) == before
        assert not DeadLetter.objects.exists()

    def test_believes_the_databases_clock_about_the_deadline(self):
        early = make_operation()
        late = make_operation(deadline_at=timezone.now() - timedelta(seconds=1))

        assert self.refuse(early, reason="deadline_passed") is None
        assert self.refuse(late, reason="deadline_passed").reason == "deadline_passed"


class TestClaim:
    def claim(self, operation, job_type=JOB):
        return lifecycle.claim(operation.id, job_type=job_type, worker="worker-a/1", token=uuid.uuid4())

    @pytest.mark.parametrize("status", [Status.QUEUED, Status.RETRY_SCHEDULED])
    def test_takes_what_waits(self, status, settings):
        operation = make_operation(status=status)

        claim = self.claim(operation)

        claimed = Operation.objects.get()
        assert (claimed.status, claimed.reason) == (Status.PROCESSING, "")
        assert (claimed.claim_token, claimed.claimed_by) == (claim.token, "worker-a/1")
        assert (claimed.runs, claimed.attempt) == (operation.runs + 1, operation.attempt + 1)
        assert claimed.lease_expires_at - claimed.started_at == pytest.approx(
            timedelta(seconds=settings.LEASE_SECONDS), abs=timedelta(milliseconds=50)
        )
        assert history(operation) == [(status, Status.PROCESSING, "")]

    def test_gives_nothing_to_a_second_worker(self):
        operation = make_operation()
        first = self.claim(operation)

        assert self.claim(operation) is None

        assert Operation.objects.get().claim_token == first.token

    @pytest.mark.parametrize("status", NOT_WAITING)
    def test_gives_nothing_when_nothing_waits(self, status):
        assert self.claim(make_operation(status=status)) is None

    @pytest.mark.parametrize(
        "changes",
        [
            pytest.param({"run_at": timezone.now() + timedelta(hours=1)}, id="before it is due"),
            pytest.param({"deadline_at": timezone.now() - timedelta(hours=1)}, id="after its deadline"),
            pytest.param({"attempt": 5, "max_attempts": 5}, id="with no attempt left"),
        ],
    )
    def test_gives_nothing(self, changes):
        operation = make_operation(**changes)
        before = row(operation)

        assert self.claim(operation) is None

        assert row(operation) == before
        assert (history(operation), ResourceFence.objects.count()) == ([], 0)

    def test_gives_nothing_to_a_message_with_another_jobs_name(self):
        assert self.claim(make_operation(), job_type="tests.work") is None

    def test_raises_the_fence_of_the_resource_each_time(self):
        first = make_claim(resource="inventory:user:7")
        second = make_claim(resource="inventory:user:7")

        assert (first.fence, second.fence) == (1, 2)

    def test_brings_what_was_applied_before(self):
        applied_by = uuid.uuid4()
        ResourceFence.objects.create(
            resource="inventory:user:7", fence=3, applied_version=9, applied_by=applied_by, applied_hash="h"
        )

        claim = make_claim(resource="inventory:user:7")

        assert claim[2:6] == (4, 9, applied_by, "h")

    def test_needs_no_fence_without_a_resource(self):
        claim = make_claim(resource="")

        assert claim.fence is None
        assert not ResourceFence.objects.exists()

    def test_remembers_when_the_first_run_began(self):
        operation = make_operation(status=Status.RETRY_SCHEDULED)

        claimed = self.claim(operation).operation

        assert claimed.first_started_at == operation.first_started_at
        assert claimed.started_at > operation.started_at


class TestExtend:
    def test_moves_the_end_of_the_lease(self):
        claim = make_claim()

        assert claims.extend(claim.operation.id, token=claim.token) is not None

        assert row(claim.operation)["lease_expires_at"] > claim.operation.lease_expires_at

    def test_changes_nothing_that_a_client_sees(self):
        claim = make_claim()

        claims.extend(claim.operation.id, token=claim.token)

        assert row(claim.operation)["version"] == claim.operation.version
        assert len(history(claim.operation)) == 1

    def test_revives_a_lease_that_nobody_has_taken_back(self):
        """It seems to be over when the database's clock was set forward."""
        claim = make_claim()
        earlier(claim.operation, "lease_expires_at")

        assert claims.extend(claim.operation.id, token=claim.token) is not None

    def test_does_not_revive_one_that_was_taken_back(self):
        claim = make_claim()
        earlier(claim.operation, "lease_expires_at")
        lifecycle.take_back(claim.operation, actor="relay", delay_seconds=0)

        assert claims.extend(claim.operation.id, token=claim.token) is None

    def test_is_refused_to_another_token(self):
        claim = make_claim()

        assert claims.extend(claim.operation.id, token=uuid.uuid4()) is None


class TestSucceed:
    def succeed(self, claim, version=None, digest="", hard_limit=40, **owes):
        return lifecycle.succeed(claim, hard_limit=hard_limit, version=version, digest=digest, **owes)

    def test_says_which_version_was_applied_and_by_whom(self):
        claim = make_claim()

        succeeded = self.succeed(claim, version=7, digest="h")

        fence = ResourceFence.objects.get()
        assert succeeded.resource_version == 7
        assert (fence.applied_version, fence.applied_by, fence.applied_hash) == (7, succeeded.id, "h")

    def test_leaves_the_applied_version_alone_for_a_job_without_versions(self):
        ResourceFence.objects.create(resource="inventory:user:7", applied_version=5, applied_hash="h")

        self.succeed(make_claim(resource="inventory:user:7"))

        fence = ResourceFence.objects.get()
        assert (fence.applied_version, fence.applied_by, fence.applied_hash) == (5, None, "h")

    def test_owes_what_has_become_stale(self):
        claim = make_claim()

        succeeded = self.succeed(claim, invalidate=["inventory:view:7"])

        assert owed(succeeded).get().invalidate == ["inventory:view:7"]

    def test_is_refused_after_a_newer_claim_on_the_resource(self):
        old = make_claim(resource="inventory:user:7")
        make_claim(resource="inventory:user:7")

        assert self.succeed(old, version=7) is None

        assert row(old.operation)["status"] == Status.PROCESSING
        assert ResourceFence.objects.get().applied_version is None

    @pytest.mark.parametrize("applied", [7, 8])
    def test_is_refused_for_a_version_that_is_not_newer(self, applied):
        ResourceFence.objects.create(
            resource="inventory:user:7", applied_version=applied, applied_by=uuid.uuid4()
        )

        assert self.succeed(make_claim(resource="inventory:user:7"), version=7) is None

        assert ResourceFence.objects.get().applied_version == applied

    def test_goes_on_with_the_version_that_it_applied_itself(self):
        operation = make_operation(resource="inventory:user:7")
        ResourceFence.objects.create(resource="inventory:user:7", applied_version=7, applied_by=operation.id)

        assert self.succeed(make_claim(operation), version=7) is not None

    def test_is_refused_after_the_hard_limit(self):
        claim = make_claim()
        earlier(claim.operation, "started_at", by=timedelta(seconds=41))

        assert self.succeed(claim, hard_limit=40) is None


class TestStanding:
    @pytest.mark.parametrize(
        ("earlier_columns", "expected"),
        [([], (True, True)), (["lease_expires_at"], (False, True)), (["started_at"], (True, False))],
    )
    def test_says_why_the_proof_said_no(self, earlier_columns, expected):
        claim = make_claim()
        if earlier_columns:
            earlier(claim.operation, *earlier_columns)

        standing = claims.standing(claim, hard_limit=40)

        assert (standing.claimed, standing.in_time) == expected

    def test_tells_the_fence_of_today(self):
        old = make_claim(resource="inventory:user:7")
        make_claim(resource="inventory:user:7")

        assert (old.fence, claims.standing(old, hard_limit=40).fence) == (1, 2)


class TestRetry:
    def test_is_due_after_the_delay_by_the_databases_clock(self):
        claim = make_claim()

        retried = lifecycle.retry(claim, failure=make_failure(), delay_seconds=45)

        moved_at = Transition.objects.latest("id").at
        assert retried.run_at - moved_at == pytest.approx(
            timedelta(seconds=45), abs=timedelta(milliseconds=50)
        )
        assert retried.published_at is None

    def test_keeps_the_attempt_and_what_went_wrong(self):
        claim = make_claim()

        retried = lifecycle.retry(claim, failure=make_failure(), delay_seconds=5)

        assert retried.attempt == 1
        assert retried.data.error["category"] == "timeout"
        assert Transition.objects.latest("id").error == "CallFailed: no answer in 10 s"

    def test_is_refused_with_no_attempt_left(self):
        claim = make_claim(max_attempts=1)

        assert lifecycle.retry(claim, failure=make_failure(), delay_seconds=5) is None


class TestFail:
    def test_writes_the_dead_letter_with_the_move(self):
        claim = make_claim()

        failed = lifecycle.fail(claim, reason="bug", failure=make_failure())

        assert DeadLetter.objects.get().operation == failed
        assert failed.data.error["message"] == "no answer in 10 s"
        assert failed.finished_at is not None

    def test_is_undone_with_the_dead_letter_that_cannot_be_written(self):
        claim = make_claim()
        make_dead_letter(claim.operation)

        with pytest.raises(IntegrityError):
            lifecycle.fail(claim, reason="bug", failure=make_failure())

        assert row(claim.operation)["status"] == Status.PROCESSING


class TestHandBack:
    def test_gives_the_attempt_back(self):
        claim = make_claim()

        queued = lifecycle.hand_back(claim, error="drain")

        assert (queued.attempt, queued.runs, queued.interruptions) == (0, 1, 1)
        assert queued.run_at <= queued.published_at <= timezone.now()  # for the caller to publish

    def test_counts_the_attempt_after_the_tenth_time(self, settings):
        claim = make_claim(interruptions=settings.MAX_INTERRUPTIONS)

        queued = lifecycle.hand_back(claim, error="drain")

        assert (queued.attempt, queued.interruptions) == (1, 11)

    def test_is_refused_after_the_tenth_time_with_no_attempt_left(self, settings):
        claim = make_claim(interruptions=settings.MAX_INTERRUPTIONS, max_attempts=1)

        assert lifecycle.hand_back(claim, error="drain") is None


class TestTakeBack:
    def lost(self, **changes):
        return make_operation(
            status=Status.PROCESSING, lease_expires_at=timezone.now() - timedelta(seconds=1), **changes
        )

    def take_back(self, operation):
        return lifecycle.take_back(operation, actor="relay", delay_seconds=0)

    def test_frees_what_a_lost_worker_held(self):
        operation = self.lost()

        freed = self.take_back(operation)

        assert (freed.status, freed.reason) == (Status.RETRY_SCHEDULED, "worker_lost")
        assert (freed.attempt, freed.lease_expires_at, freed.claimed_by) == (1, None, "")
        assert history(operation) == [(Status.PROCESSING, Status.RETRY_SCHEDULED, "worker_lost")]
        assert owed(freed).get().claim_token == operation.claim_token

    def test_buries_it_with_no_attempt_left(self):
        operation = self.lost(max_attempts=1)

        buried = self.take_back(operation)

        assert (buried.status, buried.reason) == (Status.FAILED_PERMANENT, "worker_lost")
        assert DeadLetter.objects.get().category == "poison"

    def test_leaves_a_live_lease_alone(self):
        operation = make_operation(status=Status.PROCESSING)

        assert self.take_back(operation) is None

    def test_frees_one_whose_end_is_further_ahead_than_a_beat_can_put_it(self):
        """The database's clock was set back, and nobody will see the end of that lease."""
        operation = make_operation(status=Status.PROCESSING)
        earlier(operation, "lease_expires_at", by=-timedelta(seconds=1))

        assert self.take_back(operation).reason == "worker_lost"

    def test_leaves_a_newer_claim_alone(self):
        operation = self.lost()
        Operation.objects.update(claim_token=uuid.uuid4())

        assert self.take_back(operation) is None

    @pytest.mark.parametrize("status", NOT_PROCESSING)
    def test_leaves_what_nobody_holds_alone(self, status):
        operation = make_operation(status=status, claim_token=uuid.uuid4())

        assert self.take_back(operation) is None


def test_every_job_has_a_queue_that_some_worker_serves(settings):
    served = {queue for queues in settings.WORKER_GROUPS.values() for queue in queues}

    assert {job.name for job in jobs.every()} <= served
