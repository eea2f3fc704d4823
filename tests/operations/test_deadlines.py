"""Deadlines that wait: an ordered operation is not charged for the time in which one before it lay dead."""

import uuid
from datetime import timedelta

import pytest
from django.utils import timezone

from operations import deadlines, jobs, lifecycle, replays, verify
from operations.models import DeadLetter, Operation, Status
from tasks import relay
from tests.factories import (
    HOUR,
    earlier,
    history,
    make_claim,
    make_dead_letter,
    make_failure,
    make_job,
    make_operation,
    work,
)

pytestmark = pytest.mark.django_db(transaction=True)

RESOURCE = "tests:line:7"
MINUTE = timedelta(minutes=1)


def ago(**span):
    return timezone.now() - timedelta(**span)


def declare(monkeypatch, **contract):
    job = make_job(resource=RESOURCE, ordered=True, **contract)
    monkeypatch.setitem(jobs._registry, job.name, job)
    return job


@pytest.fixture
def job(monkeypatch):
    return declare(monkeypatch)


def stand(job, place, *, status=Status.QUEUED, accepted=3 * HOUR, **changes):
    """Make an operation with one hour to its deadline, accepted so long ago."""
    at = timezone.now() - accepted
    fields = {"created_at": at, "run_at": at, "deadline_at": at + HOUR} | changes
    return make_operation(job=job, resource=RESOURCE, resource_seq=place, status=status, **fields)


def died(operation, *, since, until=None):
    """Make a dead letter that lay there for a while, counted in the past; without `until`, until now."""
    over = {} if until is None else {"replayed_at": ago(hours=until), "resolved_at": ago(hours=until)}
    over |= {} if until is None else {"resolution": "replayed_ok"}
    letter = make_dead_letter(operation, **over)
    DeadLetter.objects.filter(id=letter.id).update(created_at=ago(hours=since))
    return letter


def put_off(operation):
    return deadlines.effective(operation) - operation.deadline_at


def about(span):
    return pytest.approx(span.total_seconds(), abs=2)


class TestEffective:
    def test_waits_while_the_head_is_dead(self, job):
        died(stand(job, 1, status="failed_permanent"), since=2)

        assert put_off(stand(job, 2)).total_seconds() == about(2 * HOUR)

    def test_waited_until_the_head_was_replayed(self, job):
        died(stand(job, 1, status="succeeded"), since=2.5, until=1)

        assert put_off(stand(job, 2)).total_seconds() == about(1.5 * HOUR)

    def test_counts_what_overlaps_once(self, job):
        died(stand(job, 1, status="ignored"), since=2.5, until=1)
        died(stand(job, 2, status="failed_permanent"), since=2)

        assert put_off(stand(job, 3)).total_seconds() == about(2.5 * HOUR)

    def test_adds_what_is_apart(self, job):
        first = stand(job, 1, status="failed_permanent")
        died(first, since=2.5, until=2)
        died(first, since=1)

        assert put_off(stand(job, 2)).total_seconds() == about(1.5 * HOUR)

    def test_counts_from_the_acceptance(self, job):
        died(stand(job, 1, status="failed_permanent"), since=100)

        assert put_off(stand(job, 2)).total_seconds() == about(3 * HOUR)

    def test_counts_from_the_last_replay_of_its_own(self, job):
        died(stand(job, 1, status="failed_permanent"), since=3)
        second = stand(job, 2)
        died(second, since=2, until=0.5)

        assert put_off(second).total_seconds() == about(0.5 * HOUR)

    def test_is_put_off_no_longer_than_the_most(self, job, settings):
        settings.MAX_DEADLINE_EXTENSION = 10 * MINUTE
        died(stand(job, 1, status="failed_permanent"), since=2)

        assert put_off(stand(job, 2)) == 10 * MINUTE

    def test_minds_neither_those_behind_nor_those_elsewhere(self, job):
        second = stand(job, 2)
        died(stand(job, 3, status="failed_permanent"), since=2)
        died(make_operation(resource="tests:line:8", resource_seq=1, status="failed_permanent"), since=2)

        assert put_off(second) == timedelta(0)

    def test_does_not_wait_for_the_dead_that_are_skipped(self, monkeypatch):
        job = declare(monkeypatch, on_dead="skip")
        died(stand(job, 1, status="failed_permanent"), since=2)

        assert put_off(stand(job, 2)) == timedelta(0)

    def test_bears_a_clock_that_was_set_back(self, job):
        """The letter is dated later than its end, and later than now."""
        letter = died(stand(job, 1, status="ignored"), since=-1, until=1)
        assert letter.replayed_at is not None

        assert put_off(stand(job, 2)) == timedelta(0)


class TestJudged:
    """One whose own hour is over stood behind a dead one for two, and has time left."""

    @pytest.fixture
    def second(self, job):
        died(stand(job, 1, status="succeeded"), since=2.5, until=0.5)
        return stand(job, 2, accepted=2.75 * HOUR)

    def test_by_look(self, second):
        assert not lifecycle.look(second.id, job_type=second.job_type).overdue

    def test_by_claim(self, second):
        claimed = lifecycle.claim(
            second.id, job_type=second.job_type, worker="a/1", token=uuid.uuid4(), put_off=True
        )

        assert claimed.operation.status == "processing"

    def test_by_refuse(self, second):
        refuse = {"reason": "deadline_passed", "failure": make_failure(), "actor": "relay"}

        assert lifecycle.refuse(second.id, **refuse) is None

    def test_by_the_relay(self, second):
        assert relay.end_overdue() == 0

    def test_by_a_run(self, second, job):
        assert work(second, job).status == "succeeded"

    def test_by_verify(self, second):
        late = "an operation is neither final nor at work past its deadline"

        assert late not in [violation.what for violation in verify.violations()]

    def test_in_the_admin(self, second, admin_client):
        page = admin_client.get(f"/admin/operations/operation/{second.id}/change/").content.decode()

        assert "Its deadline passed" not in page
        assert "If it has not finished by its deadline, in" in page


class TestPassed:
    """The same with a little less time behind the dead one."""

    @pytest.fixture
    def second(self, job):
        died(stand(job, 1, status="succeeded"), since=2, until=1)
        return stand(job, 2)

    def test_is_seen_before_a_claim(self, second, job):
        assert lifecycle.look(second.id, job_type=job.name).overdue
        for put_off in (False, True):
            claim = {"job_type": job.name, "worker": "a/1", "token": uuid.uuid4(), "put_off": put_off}
            assert lifecycle.claim(second.id, **claim) is None
        assert work(second, job).reason == "deadline_passed"

    def test_is_ended_by_the_relay(self, second):
        assert relay.end_overdue() == 1

        assert history(second) == [("queued", "failed_permanent", "deadline_passed")]
        letter = DeadLetter.objects.get(operation=second)
        assert letter.error_message.startswith(f"the deadline was {second.deadline_at + HOUR:%Y-%m-%dT%H:%M}")

    def test_is_a_violation_when_nobody_ends_it(self, second):
        late = "an operation is neither final nor at work past its deadline"

        assert late in [violation.what for violation in verify.violations()]

    def test_is_ended_behind_one_that_stays_dead(self, job, settings):
        settings.MAX_DEADLINE_EXTENSION = HOUR
        died(stand(job, 1, status="failed_permanent"), since=3)
        second = stand(job, 2)

        assert relay.end_overdue() == 1

        assert Operation.objects.get(id=second.id).reason == "deadline_passed"

    def test_does_not_keep_others_that_are_overdue_from_their_end(self, job, settings):
        """Those that wait behind a dead one fill no batch."""
        settings.RELAY_BATCH = 2
        died(stand(job, 1, status="failed_permanent"), since=3)
        for place in (2, 3, 4):
            stand(job, place)
        other = make_operation(deadline_at=ago(seconds=1))

        assert relay.end_overdue() == 1

        assert Operation.objects.get(id=other.id).reason == "deadline_passed"


class TestLetter:
    """What the deadlines of others are reckoned from is written by the moves themselves."""

    def test_is_told_its_place_and_when_it_was_replayed(self, job, broker):
        first, second = stand(job, 1, accepted=MINUTE), stand(job, 2, accepted=MINUTE)
        lifecycle.fail(make_claim(first), reason="bug", failure=make_failure())
        letter = DeadLetter.objects.get()
        earlier(second, "created_at", "deadline_at")
        DeadLetter.objects.update(created_at=ago(minutes=30))

        replays.replay(letter.id, actor="user:1", reason="mended")

        letter.refresh_from_db()
        second.refresh_from_db()
        assert (letter.resource, letter.resource_seq) == (RESOURCE, 1)
        assert put_off(second).total_seconds() == about(30 * MINUTE)

    def test_ends_when_it_is_discarded(self, job):
        first = stand(job, 1, status="failed_permanent")
        letter = died(first, since=2)

        replays.discard(letter.id, actor="user:1", reason="nobody needs it")

        second = stand(job, 2)
        before = put_off(second)
        assert before.total_seconds() == about(2 * HOUR)
        assert put_off(second) == before, "it no longer grows"
