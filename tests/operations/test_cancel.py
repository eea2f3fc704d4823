"""Cancel: what waits ends at once, what runs is asked to, and what is over stays as it is."""

import pytest

from operations import cancel, claims, lifecycle, order, reading, replays
from operations.accept import VersionMoved
from operations.cancel import NotCancellable
from operations.models import AfterCommit, DeadLetter, Effect, Operation, Status, Transition
from tasks import relay
from tests.factories import (
    earlier,
    history,
    make_claim,
    make_dead_letter,
    make_failure,
    make_job,
    make_operation,
    work,
)
from tests.operations.answers import is_problem

pytestmark = pytest.mark.django_db(transaction=True)

OPEN = [Status.QUEUED, Status.PROCESSING, Status.RETRY_SCHEDULED]
OVER = [Status.SUCCEEDED, Status.FAILED_PERMANENT]
WAITING = [Status.QUEUED, Status.RETRY_SCHEDULED]


def post(api, operation, **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return api.post(f"/v1/operations/{operation.id}/cancel", headers=named)


def read(operation):
    return reading.stands(operation.id, owner_id=operation.owner_id)


def record_step(operation):
    Effect.objects.create(operation=operation, step="reserved", run=1)


class TestPost:
    @pytest.mark.parametrize("status", WAITING)
    def test_ends_what_waits(self, api, user, status):
        operation = make_operation(owner=user, status=status)

        answer = post(api, operation)

        assert answer.status_code == 200
        assert (answer.json()["status"], answer.json()["reason"]) == ("ignored", "cancelled")
        assert answer.json()["waiting_for"] == ""
        assert answer.json() == api.get(f"/v1/operations/{operation.id}").json()
        assert history(operation) == [(status, "ignored", "cancelled")]
        assert Transition.objects.get().actor == f"user:{user.pk}"

    def test_asks_the_run_of_what_is_processing(self, api, user):
        claim = make_claim(owner=user)

        answer = post(api, claim.operation)

        operation = Operation.objects.get()
        assert answer.status_code == 202
        assert answer["Location"] == f"/v1/operations/{operation.id}"
        assert int(answer["Retry-After"]) >= 1
        assert answer.json()["status"] == "processing"
        assert answer.json()["waiting_for"] == "its run to notice that it is cancelled"
        assert operation.cancel_requested_at is not None
        assert operation.version == claim.operation.version + 1

    @pytest.mark.parametrize("status", OPEN)
    def test_may_come_twice(self, api, user, status):
        operation = make_operation(owner=user, status=status)
        first = post(api, operation)
        before = Operation.objects.values().get()

        again = post(api, operation)

        assert (again.status_code, again.json()) == (first.status_code, first.json())
        assert Operation.objects.values().get() == before

    @pytest.mark.parametrize("status", OVER)
    def test_comes_too_late(self, api, user, status):
        operation = make_operation(owner=user, status=status)
        before = Operation.objects.values().get()

        answer = post(api, operation)

        assert is_problem(answer, 409, "not-cancellable")
        assert status in answer.json()["detail"]
        assert "Retry-After" not in answer
        assert Operation.objects.values().get() == before

    def test_comes_too_late_for_what_was_ignored_for_another_reason(self, api, user):
        assert is_problem(post(api, make_operation(owner=user, status="ignored")), 409, "not-cancellable")

    @pytest.mark.parametrize("status", [Status.PROCESSING, Status.RETRY_SCHEDULED])
    def test_comes_too_late_for_what_has_recorded_a_step(self, api, user, status):
        """Nothing takes it back yet."""
        operation = make_operation(owner=user, status=status)
        record_step(operation)

        answer = post(api, operation)

        assert is_problem(answer, 409, "not-cancellable")
        assert answer.json()["detail"] == "its step 'reserved' is done and can't be taken back"
        assert Operation.objects.get().cancel_requested_at is None

    def test_leaves_the_dead_letter_as_it_is(self, api, user):
        letter = make_dead_letter(make_operation(owner=user, status="failed_permanent"))
        before = DeadLetter.objects.values().get()

        post(api, letter.operation)

        assert DeadLetter.objects.values().get() == before

    @pytest.mark.parametrize("seen", ['W/"3"', '"3"', '"1", W/"3"', "*"])
    @pytest.mark.parametrize("status", OPEN)
    def test_takes_who_saw_it_as_it_is(self, api, user, seen, status):
        operation = make_operation(owner=user, version=3, status=status)

        assert post(api, operation, If_Match=seen).status_code in (200, 202)

    @pytest.mark.parametrize("seen", ['W/"2"', '"33"', "3", '"*"', ""])
    @pytest.mark.parametrize("status", OPEN)
    def test_refuses_who_saw_another_state(self, api, user, seen, status):
        operation = make_operation(owner=user, version=3, status=status)

        answer = post(api, operation, If_Match=seen)

        assert is_problem(answer, 412, "version-moved")
        assert Operation.objects.get().cancel_requested_at is None

    @pytest.mark.parametrize("status", OPEN)
    def test_never_refuses_a_repeat(self, api, user, status):
        """The first answer may have been lost, and the version is another since."""
        operation = make_operation(owner=user, version=3, status=status)
        first = post(api, operation, If_Match='W/"3"')

        assert post(api, operation, If_Match='W/"3"').status_code == first.status_code

    def test_needs_no_body_and_no_media_type(self, api, user):
        operation = make_operation(owner=user)

        assert api.generic("POST", f"/v1/operations/{operation.id}/cancel").status_code == 200


class TestCancel:
    def test_lets_no_run_begin(self):
        operation = make_operation()
        cancel.cancel(read(operation))

        after = work(operation)

        assert (after.status, after.reason, after.runs) == ("ignored", "cancelled", 0)

    def test_ends_nothing_that_was_claimed_since_it_was_seen(self):
        seen = read(make_operation())
        make_claim(seen.operation)

        asked = cancel.cancel(seen)

        assert asked.operation.status == "processing"
        assert asked.operation.cancel_requested_at is not None

    def test_ends_nothing_at_once_that_has_run_since_it_was_seen(self):
        """It waits again, but whether the run has recorded a step was not looked at after it."""
        seen = read(make_operation())
        lifecycle.retry(make_claim(seen.operation), failure=make_failure(), delay_seconds=9)

        assert cancel.withdraw(seen.operation, actor="user:1") is None
        assert cancel.cancel(seen).operation.reason == "cancelled"

    def test_asks_and_ends_what_was_handed_back_in_between(self, monkeypatch):
        claim = make_claim()
        seen = read(claim.operation)
        lifecycle.hand_back(claim, error="the worker ends")

        assert cancel.cancel(seen).operation.reason == "cancelled"

    def test_says_so_if_it_ended_meanwhile(self):
        claim = make_claim()
        seen = read(claim.operation)
        lifecycle.fail(claim, reason="bug", failure=make_failure())

        with pytest.raises(NotCancellable, match="it is failed_permanent already"):
            cancel.cancel(seen)

    def test_is_content_if_it_was_cancelled_meanwhile(self):
        seen = read(make_operation())
        cancel.cancel(seen)

        assert cancel.cancel(seen).operation.reason == "cancelled"

    @pytest.mark.parametrize("status", OPEN)
    def test_says_so_if_it_moved_since_it_was_seen(self, status):
        seen = read(make_operation(status=status))
        Operation.objects.update(version=9)

        with pytest.raises(VersionMoved, match="version 1"):
            cancel.cancel(seen, only_as_seen=True)

        assert Operation.objects.get().cancel_requested_at is None

    def test_owes_the_resource_its_waiters(self):
        operation = make_operation()

        cancel.cancel(read(operation))

        assert AfterCommit.objects.get().resource == operation.resource

    def test_lets_the_next_in_line_go_on(self):
        job = make_job(resource="tests:line:7", ordered=True)
        first, second = (make_operation(job=job, resource_seq=place) for place in (1, 2))
        assert order.blocked_by(second) == first.id

        cancel.cancel(read(first))
        earlier(first, "run_at")
        AfterCommit.objects.update(run_at="2000-01-01T00:00:00Z")
        published_before = Operation.objects.get(id=second.id).published_at
        relay.repeat_after_commit()

        assert order.blocked_by(second) is None
        assert Operation.objects.get(id=second.id).published_at > published_before

    def test_closes_the_letter_of_one_that_was_replayed(self):
        letter = make_dead_letter()
        replays.replay(letter.id, actor="user:ops", reason="mended")

        cancel.cancel(read(letter.operation))

        letter.refresh_from_db()
        assert (letter.resolution, letter.resolved_at is None) == ("discarded", False)

    def test_is_forgotten_by_a_replay(self):
        claim = make_claim()
        cancel.cancel(read(claim.operation))
        lifecycle.fail(claim, reason="bug", failure=make_failure())
        letter = DeadLetter.objects.get()

        replays.replay(letter.id, actor="user:ops", reason="mended")

        assert Operation.objects.get().cancel_requested_at is None


class TestStop:
    def test_ends_the_run_that_was_asked(self):
        claim = make_claim()
        cancel.cancel(read(claim.operation))

        stopped = cancel.stop(claim)

        assert (stopped.status, stopped.reason) == ("ignored", "cancelled")
        assert history(claim.operation)[-1] == ("processing", "ignored", "cancelled")

    def test_ends_none_that_nobody_has_asked(self):
        assert cancel.stop(make_claim()) is None

    def test_ends_none_that_has_recorded_a_step(self):
        claim = make_claim()
        cancel.cancel(read(claim.operation))
        record_step(claim.operation)

        assert cancel.stop(claim) is None

    def test_ends_none_of_another_claim(self):
        claim = make_claim()
        cancel.cancel(read(claim.operation))
        earlier(claim.operation, "lease_expires_at")

        assert cancel.stop(claim) is None


class TestBeat:
    def test_hears_of_it(self):
        claim = make_claim()
        assert claims.extend(claim.operation.id, token=claim.token) == (False,)

        cancel.cancel(read(claim.operation))

        assert claims.extend(claim.operation.id, token=claim.token) == (True,)
