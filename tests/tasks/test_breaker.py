"""A breaker: what opens it, what a probe is, and what a result from before a change says: nothing."""

import uuid
from datetime import timedelta

import pytest
from django.db.models import F
from django.db.models.functions import Now

from operations import dependencies, lifecycle
from operations.models import Dependency, Hold, Operation, Status
from operations.serializers import waiting_for
from tasks import breaker, releases, retry
from tasks.base import app, task_of
from tests.factories import HOUR, history, make_job, make_operation, work

pytestmark = pytest.mark.django_db(transaction=True)

NAME = "warehouse"


@pytest.fixture(autouse=True)
def quick(settings, monkeypatch):
    settings.BREAKER_FAILURES, settings.BREAKER_PERCENT, settings.BREAKER_PROBES = 3, 50, 2
    monkeypatch.setattr(breaker, "_calls", breaker.Counter())
    monkeypatch.setattr(breaker, "_since", {})
    monkeypatch.setattr(dependencies.jobs, "depending_on", lambda name: ["tests.work"])


def job_that(call):
    return make_job(call=call, dependency=NAME)


def down(run, **payload):
    raise retry.CallFailed("dependency_unavailable", "HTTP 503")


def well(run, **payload):
    return None


def fail(times, *, call=down):
    """Run so many operations that fail, each its first attempt, and give them."""
    return [work(make_operation(job=job_that(call)), job_that(call)) for _ in range(times)]


def opened():
    """Open the breaker of NAME by failures, and give its row, due for a probe."""
    fail(3)
    Dependency.objects.filter(name=NAME).update(probe_at=Now())
    return Dependency.objects.get()


def task_for(call, **headers):
    task = task_of(job_that(call))
    task.bind(app)
    task.push_request(**headers)
    return task


def probe(call):
    """Do what a worker does with the message of a probe, and give the operation."""
    operation = make_operation(job=job_that(call))
    hold = Hold.objects.get(kind="breaker", ended_at=None)
    task_for(call, released=[hold.id], probe=True).run(str(operation.id))
    operation.refresh_from_db()
    return operation


class TestOpening:
    def test_needs_enough_failures(self):
        fail(2)

        assert Dependency.objects.get().state == "closed"
        assert not Hold.objects.exists()

        fail(1)
        assert Dependency.objects.get().state == "open"

    def test_needs_them_to_be_enough_of_all_calls(self):
        for _ in range(10):
            work(make_operation(job=job_that(well)), job_that(well))
        fail(5)

        found = Dependency.objects.get()
        assert (found.state, found.calls, found.failures) == ("closed", 15, 5)

    def test_forgets_successes_from_before_the_window(self, monkeypatch):
        for _ in range(10):
            work(make_operation(job=job_that(well)), job_that(well))
        monkeypatch.setattr(breaker, "_since", {NAME: breaker.time.monotonic() - 31})  # a window of 30 s

        fail(3)

        assert Dependency.objects.get().state == "open"

    def test_writes_nothing_for_a_success(self, django_assert_num_queries):
        task = task_for(well)

        with django_assert_num_queries(0):
            breaker.note(task, None, make_operation.__class__)

        assert not Dependency.objects.exists()

    def test_forgets_what_was_before_the_window(self):
        fail(2)
        Dependency.objects.update(window_ends_at=Now())

        fail(2)

        found = Dependency.objects.get()
        assert (found.state, found.failures) == ("closed", 2)

    def test_holds_the_jobs_of_the_dependency(self):
        opened()

        hold = Hold.objects.get()
        assert (hold.scope, hold.kind, hold.job_types) == (f"dependency:{NAME}", "breaker", ["tests.work"])
        assert hold.per_second == 0

    def test_happens_at_once_when_our_credentials_are_refused(self):
        def refused(run, **payload):
            raise retry.CallFailed("dependency_unavailable", "HTTP 401", shuts=True)

        [operation] = fail(1, call=refused)

        assert Dependency.objects.get().state == "open"
        assert (operation.status, operation.reason, operation.attempt) == (
            "retry_scheduled",
            "dependency_held",
            0,
        )

    def test_gives_the_attempt_back_to_the_run_that_opened_it(self):
        first, second, third = fail(3)

        assert [each.attempt for each in (first, second, third)] == [1, 1, 0]
        assert history(third)[-1] == ("processing", "retry_scheduled", "dependency_held")

    def test_does_not_count_what_the_database_could_not_be_told(self, monkeypatch):
        def away(*args, **kwargs):
            raise dependencies.statements.connection.Database.OperationalError("gone")

        monkeypatch.setattr(dependencies, "count", away)
        monkeypatch.setattr(breaker, "DatabaseError", Exception)

        [operation] = fail(1)

        assert (operation.status, operation.reason) == ("retry_scheduled", "dependency_unavailable")


class TestHeld:
    def test_makes_no_move_and_is_not_claimed(self):
        opened()
        operation = make_operation(job=job_that(well))
        before = Operation.objects.values().get(id=operation.id)

        work(operation, job_that(well))

        assert Operation.objects.values().get(id=operation.id) == before
        token = uuid.uuid4()
        assert lifecycle.claim(operation.id, job_type="tests.work", worker="w/1", token=token) is None

    def test_leaves_other_jobs_alone(self):
        opened()
        other = make_job(name="tests.other")

        assert work(make_operation(job=other), other).status == Status.SUCCEEDED

    def test_says_why(self):
        found = opened()
        operation = make_operation(job=job_that(well))

        said = f"held: dependency {NAME} open since {found.changed_at:%H:%M}, probe {found.probe_at:%H:%M}"
        assert waiting_for(operation) == said


class TestGeneration:
    def test_a_success_begun_before_the_trip_leaves_it_open(self):
        slow = make_operation(job=job_that(well))

        def trip_meanwhile(run, **payload):
            opened()

        work(slow, job_that(trip_meanwhile))

        slow.refresh_from_db()
        assert slow.status == Status.SUCCEEDED
        assert Dependency.objects.get().state == "open"

    def test_a_failure_begun_before_the_release_does_not_count_and_costs_nothing(self):
        def recover_meanwhile(run, **payload):
            opened()
            assert [probe(well).status, probe(well).status] == ["succeeded", "succeeded"]
            down(run)

        late = work(make_operation(job=job_that(well)), job_that(recover_meanwhile))

        assert (late.reason, late.attempt) == ("dependency_held", 0)
        found = Dependency.objects.get()
        assert (found.state, found.failures) == ("releasing", 0)


class TestProbe:
    def test_is_one_at_a_time(self):
        opened()
        first, second = uuid.uuid4(), uuid.uuid4()

        assert [dependencies.take_probe(NAME, token=token) for token in (first, second)] == [True, False]

    def test_does_not_come_before_its_time(self):
        fail(3)

        assert not dependencies.take_probe(NAME, token=uuid.uuid4())

    def test_that_fails_keeps_it_open_for_longer_and_costs_no_attempt(self, settings):
        settings.BREAKER_FIRST_PROBE_SECONDS = 10
        opened()
        pauses = []

        for _ in range(3):
            operation = probe(down)
            assert (operation.reason, operation.attempt) == ("dependency_held", 0)
            pauses.append(Dependency.objects.annotate(pause=F("probe_at") - Now()).get().pause)
            Dependency.objects.update(probe_at=Now())

        # 10 s doubled once, twice, three times
        assert [round(pause.total_seconds()) for pause in pauses] == [20, 40, 80]

    def test_whose_worker_died_is_one_that_failed(self):
        opened()
        assert dependencies.take_probe(NAME, token=uuid.uuid4())
        Dependency.objects.update(probe_expires_at=Now() - timedelta(seconds=1))

        assert dependencies.fail_lost_probes() == [NAME]

        found = Dependency.objects.get()
        assert (found.state, found.probe_token, found.probes_failed) == ("open", None, 1)

    def test_that_comes_too_late_says_nothing(self):
        opened()
        token = uuid.uuid4()
        assert dependencies.take_probe(NAME, token=token)
        Dependency.objects.update(probe_expires_at=Now() - timedelta(seconds=1))

        assert dependencies.probe_answered(NAME, token=token) is None
        assert Dependency.objects.get().state == "open"

    def test_closes_only_after_several(self):
        opened()

        probe(well)
        assert Dependency.objects.get().state == "half_open"
        probe(well)

        assert Dependency.objects.get().state == "releasing"
        assert list(Hold.objects.filter(ended_at=None).values_list("kind", flat=True)) == ["release"]

    def test_is_given_back_by_a_worker_that_came_too_late_for_its_operation(self):
        opened()
        operation, task = make_operation(job=job_that(well)), task_for(well, probe=True)
        token = uuid.uuid4()
        assert breaker.may_begin(task, token)

        breaker.give_back(task, token)

        assert Dependency.objects.get().probe_token is None
        assert operation.attempt == 0

    def test_is_not_spent_on_an_operation_that_another_run_has_ended(self, monkeypatch):
        opened()
        monkeypatch.setattr(lifecycle, "claim", lambda *args, **values: None)

        assert probe(well).status == Status.QUEUED

        found = Dependency.objects.get()
        assert (found.probe_token, found.probes_failed) == (None, 0)

    def test_learns_nothing_good_from_a_call_that_hung_until_the_soft_limit(self):
        def hang(run, **payload):
            raise retry.SoftLimitPassed

        opened()

        probe(hang)

        found = Dependency.objects.get()
        assert (found.state, found.probes_succeeded) == ("open", 0)

    def test_of_an_unknown_state_is_asked_as_if_half_open(self):
        opened()
        Dependency.objects.update(state="a_later_word")

        assert dependencies.take_probe(NAME, token=uuid.uuid4())


class TestRetryBudget:
    def test_puts_a_retry_off_to_the_next_window_when_it_is_spent(self, settings):
        settings.BREAKER_FREE_RETRIES, settings.BREAKER_RETRY_SHARE = 1, 0.1
        settings.BREAKER_FAILURES = 100

        granted, put_off = fail(2)

        assert granted.run_at - granted.started_at < timedelta(seconds=11)  # 5 s, and as much again
        assert put_off.run_at - put_off.started_at > timedelta(seconds=25)  # a window of 30 s
        assert put_off.attempt == 1

    def test_does_not_send_all_of_them_back_at_the_same_moment(self, settings):
        settings.BREAKER_FREE_RETRIES, settings.BREAKER_RETRY_SHARE = 0, 0
        settings.BREAKER_FAILURES = 100

        run_at = [operation.run_at for operation in fail(12)]

        # Spread over a window of 30 s; by chance within 3 s of each other once in 10^10 times.
        assert max(run_at) - min(run_at) > timedelta(seconds=3)


class TestRelay:
    """What passes a hold."""

    @pytest.fixture(autouse=True)
    def sent(self, monkeypatch):
        sent = []

        def note(operation, **headers):
            sent.append((operation.id, headers))
            return True

        monkeypatch.setattr(releases, "publish", note)
        monkeypatch.setattr(releases.publisher, "depth", lambda queue: 0)
        return sent

    def waiting(self, count):
        made = [make_operation(job=job_that(well), published_at=None) for _ in range(count)]
        for position, each in enumerate(made):  # the last made is the oldest
            Operation.objects.filter(id=each.id).update(run_at=Now() - timedelta(minutes=position + 1))
        return [each.id for each in reversed(made)]

    def test_sends_the_oldest_as_a_probe_when_one_is_due(self, sent):
        opened()
        oldest, *_ = self.waiting(3)
        hold = Hold.objects.get()

        assert releases.probe() == 1

        assert sent == [(oldest, {"released": [hold.id], "probe": True})]

    def test_sends_none_while_another_is_at_work(self, sent):
        opened()
        self.waiting(1)
        dependencies.take_probe(NAME, token=uuid.uuid4())

        assert releases.probe() == 0

    def release_began(self, ago):
        opened()
        probe(well)
        probe(well)
        Hold.objects.filter(kind="release").update(paced_until=Now() - ago, per_second=20)
        return Hold.objects.get(kind="release")

    def test_releases_the_oldest_first_at_the_rate(self, sent):
        hold = self.release_began(timedelta(seconds=60))
        oldest = self.waiting(5)

        # four fifths of 20 a second, for 0.2 s, however long nobody came
        assert releases.release() == 3

        assert [id for id, _ in sent] == oldest[:3]
        assert sent[0][1]["released"] == [hold.id]
        assert releases.release() == 0

    def test_ends_the_release_when_nothing_waits(self):
        self.release_began(timedelta(seconds=60))
        Operation.objects.exclude(status="succeeded").update(run_at=Now() + HOUR)

        releases.release()

        assert Dependency.objects.get().state == "closed"
        assert not Hold.objects.filter(ended_at=None).exists()

    def test_does_not_end_the_release_while_the_broker_takes_nothing(self, monkeypatch):
        self.release_began(timedelta(seconds=60))
        self.waiting(2)

        def unsent(operation, **headers):
            Operation.objects.filter(id=operation.id).update(published_at=None)
            return False

        monkeypatch.setattr(releases, "publish", unsent)

        assert releases.release() == 0

        assert Dependency.objects.get().state == "releasing"

    def test_does_not_end_the_release_while_a_pause_is_over_what_waits(self):
        self.release_began(timedelta(seconds=60))
        self.waiting(2)
        Hold.objects.create(scope="job_type:tests.work", kind="pause", job_types=["tests.work"])

        assert releases.release() == 0

        assert Dependency.objects.get().state == "releasing"

    def test_holds_nothing_for_a_dependency_that_has_just_been_closed(self):
        """Its last probe succeeded after the relay had read that it was shut."""
        self.release_began(timedelta(seconds=60))
        seen = Dependency(name=NAME, state="half_open")

        releases._probe(seen)

        assert not Hold.objects.filter(kind="breaker", ended_at=None).exists()

    def test_a_message_from_before_the_release_does_not_pass(self):
        old = make_operation(job=job_that(well))
        hold = self.release_began(timedelta(seconds=60))

        assert work(old, job_that(well)).status == Status.QUEUED
        task_for(well, released=[hold.id]).run(str(old.id))

        old.refresh_from_db()
        assert old.status == Status.SUCCEEDED

    def test_holds_a_job_that_is_new_in_this_code(self, monkeypatch):
        opened()
        monkeypatch.setattr(releases.jobs, "depending_on", lambda name: ["tests.new"])

        releases.probe()

        assert Hold.objects.get().job_types == ["tests.new", "tests.work"]
