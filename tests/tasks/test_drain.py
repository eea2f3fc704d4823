"""The word to end, and what a run does about it: starts nothing, hands back, loses nothing."""

import os
import signal
import time

import pytest
from billiard import current_process
from django.db import connections

from operations import lifecycle
from operations.models import DeadLetter, Operation
from tasks import drain, lock
from tasks.heartbeat import Heartbeat, Pulse
from tests.factories import history, make_claim, make_job, make_operation, work
from tests.threads import meanwhile, until

HARD_LIMIT = 40.0


@pytest.fixture(autouse=True)
def unsaid(monkeypatch):
    """Take the word back after each test."""
    monkeypatch.setattr(drain, "_told", False)
    monkeypatch.setattr(drain, "_wakeups", None)
    yield
    drain._began[:] = bytes(8)


@pytest.fixture
def in_child(monkeypatch):
    """Run as in a child of a pool, whose signals are given back afterwards."""
    monkeypatch.setattr(current_process(), "_name", "ForkPoolWorker-1")
    monkeypatch.setattr(current_process(), "index", 0, raising=False)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGQUIT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    if (writing := signal.set_wakeup_fd(-1)) >= 0:
        os.close(writing)
        os.close(drain._wakeups)


def begin(*, seconds_ago=0.0):
    drain._began[:] = drain.struct.pack("d", time.monotonic() - seconds_ago)


class TestWord:
    def test_is_not_given_by_itself(self):
        assert not drain.begun()
        assert not drain.time_is_up()

    def test_is_heard_by_processes_that_were_forked_before(self):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.read(reading, 1)
            os._exit(17 if drain.begun() else 0)

        drain.begin()
        os.write(writing, b".")

        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17

    def test_counts_from_the_first_time(self):
        begin(seconds_ago=20)
        left = drain.seconds_left()

        drain.begin()

        assert drain.seconds_left() <= left

    def test_leaves_time_until_the_margin_begins(self, settings):
        settings.GRACE_SECONDS, settings.GRACE_MARGIN_SECONDS = 25, 5

        begin(seconds_ago=19)
        assert not drain.time_is_up()

        begin(seconds_ago=20.1)
        assert drain.time_is_up()


class TestWorking:
    """A child that alone is sent a TERM: for a hurry, or for a run that has reached its hard limit."""

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT])
    def test_takes_a_signal_for_a_word(self, in_child, number, monkeypatch):
        monkeypatch.setattr(drain.threading.Timer, "start", lambda timer: None)

        with drain.Working(hard_limit=HARD_LIMIT):
            os.kill(os.getpid(), number)

            assert drain.begun()
            assert drain.time_is_up()

    def test_is_heard_although_the_main_thread_is_in_a_call(self, in_child, monkeypatch):
        monkeypatch.setattr(drain.threading.Timer, "start", lambda timer: None)
        monkeypatch.setattr(drain, "_on_term", lambda *called: None)  # after the call it would be called

        with drain.Working(hard_limit=HARD_LIMIT):
            os.kill(os.getpid(), signal.SIGTERM)

            assert drain.time_is_up()

    def test_ends_a_child_that_does_nothing(self, in_child):
        with drain.Working(hard_limit=HARD_LIMIT):
            pass

        with pytest.raises(SystemExit, match="0"):
            os.kill(os.getpid(), signal.SIGTERM)

    def test_ends_soon_after_the_run_that_it_was_told_in(self, in_child, monkeypatch):
        monkeypatch.setattr(drain, "AFTERWARDS_SECONDS", 0.05)

        with drain.Working(hard_limit=HARD_LIMIT):
            os.kill(os.getpid(), signal.SIGTERM)
        assert drain.begun()

        with pytest.raises(SystemExit):
            time.sleep(5)

    def test_hands_nothing_back_at_the_hard_limit(self, in_child, monkeypatch):
        monkeypatch.setattr(drain.threading.Timer, "start", lambda timer: None)

        with drain.Working(hard_limit=drain.SAME_MOMENT_SECONDS):
            os.kill(os.getpid(), signal.SIGTERM)

            assert not drain.begun()
            assert not drain.time_is_up()

    def test_leaves_the_signals_of_a_parent_alone(self):
        before = signal.getsignal(signal.SIGTERM)

        with drain.Working(hard_limit=HARD_LIMIT):
            assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.django_db(transaction=True)
class TestRun:
    def test_is_not_begun(self, broker, provider):
        operation = make_operation()
        drain.begin()

        operation = work(operation)

        assert (operation.status, operation.runs) == ("queued", 0)
        assert history(operation) == []
        assert provider.asked == []
        assert broker.depth() == 1, "nobody was told to do it instead"

    @pytest.mark.parametrize("look", ["check", "step"])
    def test_is_handed_back_where_it_looks(self, look, broker):
        def call(run, **values):
            drain.begin()
            run.check() if look == "check" else run.step("first", lambda: None)

        job = make_job(call=call, resource="tests:of:{user_id}")

        operation = work(make_operation(job=job), job)

        assert (operation.status, operation.reason) == ("queued", "interrupted")
        assert (operation.runs, operation.attempt, operation.interruptions) == (1, 0, 1)
        assert lock.holder(operation.resource) is None
        assert broker.depth("tests.work") == 1

    def test_is_finished_if_it_does_not_look(self):
        job = make_job(call=lambda run, **values: drain.begin())

        assert work(make_operation(job=job), job).status == "succeeded"

    def test_costs_an_attempt_when_it_was_interrupted_too_often(self, settings):
        job = make_job(call=lambda run, **values: (drain.begin(), run.check()))
        operation = make_operation(job=job, interruptions=settings.MAX_INTERRUPTIONS)

        operation = work(operation, job)

        assert (operation.status, operation.attempt, operation.runs) == ("queued", 1, 1)

    def test_is_buried_when_no_attempt_is_left(self, settings):
        job = make_job(call=lambda run, **values: (drain.begin(), run.check()))
        operation = make_operation(job=job, interruptions=settings.MAX_INTERRUPTIONS, max_attempts=1)

        operation = work(operation, job)

        assert (operation.status, operation.reason) == ("failed_permanent", "attempts_exhausted")
        assert "the worker ends" in DeadLetter.objects.get().error_message


class Ended(BaseException):
    """The process would have ended here."""


@pytest.mark.django_db(transaction=True)
class TestHeartbeat:
    """It hands back for a run that does not look, and ends the child with it."""

    @pytest.fixture(autouse=True)
    def ended(self, in_child, monkeypatch):
        ended = []

        def end(code):
            ended.append(code)
            raise Ended

        monkeypatch.setattr(os, "_exit", end)
        return ended

    @pytest.fixture
    def claim(self):
        return make_claim()

    def look(self, claim):
        """Look once as the thread does, and say whether the process would have ended."""
        heartbeat = Heartbeat(claim)
        try:
            heartbeat.look()
        except Ended:
            return True
        return False

    def test_waits_while_there_is_time(self, claim):
        drain.begin()

        assert not self.look(claim)

        assert Operation.objects.get().status == "processing"

    def test_hands_back_and_ends_when_there_is_none(self, claim, settings, broker, ended):
        begin(seconds_ago=settings.GRACE_SECONDS)
        lock.take(claim.operation.resource, token=claim.token, operation_id=claim.operation.id, worker="a/1")

        assert self.look(claim)

        operation = Operation.objects.get()
        assert (operation.status, operation.reason, operation.attempt) == ("queued", "interrupted", 0)
        assert lock.holder(operation.resource) is None
        assert broker.depth() == 1
        assert ended == [0]

    def test_ends_in_time_although_the_broker_is_away(self, claim, settings, broker_away, ended):
        begin(seconds_ago=settings.GRACE_SECONDS)

        assert self.look(claim)

        assert Operation.objects.get().published_at is None
        assert ended == [0]

    def test_lets_its_own_finish_end_while_there_is_time(self, claim, settings, monkeypatch, ended):
        begin(seconds_ago=settings.GRACE_SECONDS - settings.GRACE_MARGIN_SECONDS)
        self.be_impatient(monkeypatch)

        with meanwhile(lambda: Operation.objects.select_for_update().get(id=claim.operation.id)):
            assert not self.look(claim)

        assert ended == []

    def test_ends_without_handing_back_when_its_own_finish_takes_too_long(
        self, claim, settings, monkeypatch, ended
    ):
        begin(seconds_ago=settings.GRACE_SECONDS)
        self.be_impatient(monkeypatch)

        with meanwhile(lambda: Operation.objects.select_for_update().get(id=claim.operation.id)):
            assert self.look(claim)

        assert ended == [1]

    def test_does_not_end_between_the_commit_and_what_follows_it(self, claim, settings, ended):
        begin(seconds_ago=settings.GRACE_SECONDS)
        lifecycle.succeed(claim, hard_limit=HARD_LIMIT, version=None, digest="")
        heartbeat = Heartbeat(claim)
        heartbeat._stop.wait = lambda seconds: True  # the run ends meanwhile

        heartbeat.look()

        assert ended == []

    def be_impatient(self, monkeypatch):
        monkeypatch.setitem(connections.settings["default"]["OPTIONS"], "options", "-c lock_timeout=50")
        connections["default"].close()


class TestPulse:
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    def test_begins_again_when_a_bug_has_ended_it(self):
        pulse, looks = Pulse(), []

        class Broken:
            def look(self):
                raise ZeroDivisionError

        class Sound:
            def look(self):
                looks.append(1)

        broken = Broken()
        pulse.watch(broken)
        until(lambda: not pulse._thread.is_alive())
        pulse.forget(broken)

        pulse.watch(Sound())

        until(lambda: looks)
