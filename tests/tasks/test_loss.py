"""A child has died or is being ended: the parent hears of it, and what the child held is free at once."""

import logging
import os
import signal
import subprocess
import threading
import time
import uuid

import pytest
from billiard import current_process
from billiard.einfo import ExceptionInfo
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery.worker.request import Request
from django.db import OperationalError
from django.utils import timezone

from operations.models import DeadLetter, Operation, Transition
from tasks import holds, lock, loss, relay
from tests.factories import history, make_operation, work
from tests.threads import until

ID = "01990000-0000-7000-8000-000000000001"
DEAD, ALIVE = "worker-z@host/9", "worker-z@host/10"
UNKNOWN_PID = 2**22 + 1  # one more than Linux can give


def held(**changes):
    """Make an operation that runs, with a lease that has long to go."""
    return make_operation(status="processing", **{"claimed_by": DEAD, **changes})


def lost_before(operation):
    Transition.objects.create(
        operation=operation,
        from_status="processing",
        to_status="retry_scheduled",
        reason="worker_lost",
        run=1,
        attempt=1,
        actor="relay",
        at=timezone.now(),
    )


def pause_of(operation):
    moved_at = Transition.objects.filter(operation_id=operation.id).latest("id").at
    return (Operation.objects.get().run_at - moved_at).total_seconds()


@pytest.mark.django_db(transaction=True)
class TestFreeLost:
    def test_frees_at_once_and_keeps_the_attempt(self, broker):
        operation = held()

        assert relay.free_lost(str(operation.id), DEAD) is True

        freed = Operation.objects.get()
        assert (freed.status, freed.reason, freed.attempt) == ("retry_scheduled", "worker_lost", 1)
        assert (freed.claimed_by, freed.lease_expires_at) == ("", None)
        assert Transition.objects.get().actor == DEAD
        assert broker.depth() == 1

    def test_lets_a_second_loss_wait(self, broker):
        operation = held(attempt=2, runs=2)
        lost_before(operation)

        relay.free_lost(str(operation.id), DEAD)

        # Before the third attempt the job waits 15 s, and up to as much again.
        assert 15 <= pause_of(operation) <= 30.1
        assert broker.depth() == 0

    def test_buries_what_has_no_attempt_left(self):
        held(attempt=5, runs=5)

        relay.free_lost(str(Operation.objects.get().id), DEAD)

        assert Operation.objects.get().reason == "worker_lost"
        assert DeadLetter.objects.get().category == "poison"

    def test_frees_the_lock(self):
        operation = held()
        lock.take(operation.resource, token=operation.claim_token, operation_id=operation.id, worker=DEAD)

        relay.free_lost(str(operation.id), DEAD)

        assert lock.holder(operation.resource) is None

    def test_leaves_alone_what_another_holds_by_now(self):
        operation = held(claimed_by=ALIVE)

        assert relay.free_lost(str(operation.id), DEAD) is False

        assert history(operation) == []

    @pytest.mark.parametrize("status", ["queued", "retry_scheduled", "succeeded", "failed_permanent"])
    def test_leaves_alone_what_the_child_had_moved(self, status):
        operation = make_operation(status=status)

        assert relay.free_lost(str(operation.id), DEAD) is False

        assert history(operation) == []


@pytest.mark.django_db(transaction=True)
class TestFreeLostAtItsHardLimit:
    def test_counts_a_timeout_and_waits_as_after_any(self, broker):
        operation = held()

        relay.free_lost(str(operation.id), DEAD, timed_out=True)

        freed = Operation.objects.select_related("data").get()
        assert (freed.status, freed.reason, freed.attempt) == ("retry_scheduled", "timeout", 1)
        assert 5 <= pause_of(operation) <= 10.1
        assert freed.data.error["category"] == "timeout"
        assert freed.data.error["message"] == f"{DEAD} was ended at the hard limit in run 1"
        assert broker.depth() == 0

    def test_buries_what_has_no_attempt_left(self):
        operation = held(attempt=5, runs=5)

        relay.free_lost(str(operation.id), DEAD, timed_out=True)

        assert history(operation) == [("processing", "failed_permanent", "timeout_exhausted")]
        letter = DeadLetter.objects.get()
        assert (letter.reason, letter.category, letter.attempts) == ("timeout_exhausted", "timeout", 5)

    def test_lets_another_run_succeed(self, provider):
        provider.has(version=1)
        operation = held()

        relay.free_lost(str(operation.id), DEAD, timed_out=True)
        Operation.objects.update(run_at=timezone.now())

        assert work(operation).status == "succeeded"


def make_request(*args, worker_pid=9):
    """Make a request that a child serves, without the message it would have come from."""

    class Served(loss.WatchedRequest):
        def __init__(self):
            self.worker_pid = worker_pid

        hostname, args = "worker-z@host", None

    request = Served()
    Served.args = list(args)
    return request


def info(error):
    try:
        raise error
    except type(error):
        return ExceptionInfo()


class TestWatchedRequest:
    @pytest.fixture(autouse=True)
    def told(self, monkeypatch):
        told = []
        monkeypatch.setattr(loss, "_tell", told.append)
        for name in ("on_failure", "on_timeout"):
            monkeypatch.setattr(Request, name, lambda *args, **kwargs: None)
        return told

    @pytest.mark.parametrize("error", [WorkerLostError("signal 9"), SystemExit(0)])
    def test_tells_of_a_child_that_died(self, told, error):
        make_request(ID).on_failure(info(error))

        assert told == [loss.Loss(ID, DEAD, 9, timed_out=False)]

    def test_tells_of_a_child_that_is_ended_at_its_hard_limit(self, told):
        request = make_request(ID)

        request.on_timeout(soft=False, timeout=40)
        request.on_failure(info(TimeLimitExceeded(40)))  # Celery calls both

        assert told == [loss.Loss(ID, DEAD, 9, timed_out=True)]

    def test_tells_of_what_the_child_was_at_and_not_of_what_it_had_begun_with(self, told, monkeypatch):
        at_work = uuid.uuid4()
        monkeypatch.setattr(
            holds, "every", lambda: [holds.Hold(8, uuid.uuid4(), 1.0), holds.Hold(9, at_work, 1.0)]
        )

        make_request(ID).on_timeout(soft=False, timeout=40)

        assert told == [loss.Loss(str(at_work), DEAD, 9, timed_out=True)]

    @pytest.fixture
    def silent(self, monkeypatch):
        """Give a function that says whether Celery was told to say nothing of an error."""
        seen = []
        monkeypatch.setattr(Request, "on_failure", lambda *args: seen.append(args[-1]))

        def silent(error):
            make_request(ID).on_failure(info(error))
            return seen.pop()

        return silent

    IN_ORDER = WorkerLostError("Worker exited prematurely: exitcode 0 Job: 7.")
    KILLED = WorkerLostError("Worker exited prematurely: signal 9 (SIGKILL) Job: 7.")

    def test_lets_celery_say_nothing_of_what_was_told(self, silent, monkeypatch):
        assert silent(TimeLimitExceeded(40))
        assert silent(self.IN_ORDER), "it had handed its operation back"
        monkeypatch.setattr(loss, "_ended", {9})
        assert silent(self.KILLED), "we have ended it"

    def test_lets_celery_speak_of_what_nobody_meant(self, silent, monkeypatch):
        assert not silent(ValueError("a bug"))
        assert not silent(self.KILLED)
        assert not silent(WorkerLostError("Worker exited prematurely: exitcode 1 Job: 0."))
        monkeypatch.setattr(loss, "_bereft", {9})
        assert not silent(self.IN_ORDER), "it took its claim along"
        assert silent(self.IN_ORDER), "the next process of that number has not"

    def test_lets_celery_speak_of_one_whose_claim_has_not_been_missed_yet(self, silent, monkeypatch):
        monkeypatch.setattr(holds, "every", lambda: [holds.Hold(9, uuid.uuid4(), 0.0)])

        assert not silent(self.IN_ORDER)

    @pytest.mark.parametrize(("name", "told"), [("inventory.sync", True), ("dead_letter.report", False)])
    def test_drops_celerys_own_line_about_the_hard_limit_of_a_job(self, caplog, name, told):
        logging.getLogger("celery.worker.request").error(
            "Hard time limit (%ss) exceeded for %s[%s]", 40, name, ID
        )

        assert ("Hard time limit" in caplog.text) is not told

    def test_tells_nothing_of_a_soft_limit(self, told):
        make_request(ID).on_timeout(soft=True, timeout=30)

        assert told == []

    def test_tells_nothing_of_an_error_that_the_child_survived(self, told):
        make_request(ID).on_failure(info(ValueError("a bug")))

        assert told == []

    @pytest.mark.parametrize("args", [(), ("nonsense",), (None,), ([],)])
    def test_tells_nothing_of_a_message_that_names_nothing(self, told, args):
        make_request(*args).on_failure(info(WorkerLostError("signal 9")))

        assert told == []

    def test_tells_nothing_of_a_message_that_no_child_had_taken(self, told):
        make_request(ID, worker_pid=None).on_failure(info(WorkerLostError("signal 9")))

        assert told == []


class TestHold:
    @pytest.fixture(autouse=True)
    def unheld(self):
        yield
        holds._slots[:] = bytes(len(holds._slots))

    @pytest.fixture
    def as_child(self, monkeypatch):
        """Run as the fourth child of a pool."""
        monkeypatch.setattr(current_process(), "_name", "ForkPoolWorker-4")
        monkeypatch.setattr(current_process(), "index", 3, raising=False)

    def test_is_seen_by_the_parent_of_a_dead_child(self, as_child):
        child = os.fork()
        if not child:
            holds.hold(uuid.UUID(ID), until=77.0)
            os._exit(0)
        os.waitpid(child, 0)

        assert holds.every() == [holds.Hold(child, uuid.UUID(ID), 77.0)]

        holds.forget(child)
        assert holds.every() == []

    def test_ends_with_the_run(self, as_child):
        holds.hold(uuid.UUID(ID), until=77.0)

        holds.let_go()

        assert holds.every() == []

    def test_is_nothing_where_no_parent_watches(self):
        holds.hold(uuid.UUID(ID), until=77.0)

        assert holds.every() == []

    def test_is_nothing_beyond_the_last_slot(self, as_child, monkeypatch):
        monkeypatch.setattr(current_process(), "index", holds.SLOTS)

        holds.hold(uuid.UUID(ID), until=77.0)

        assert holds.every() == []


class TestWatch:
    NOW, LEASE = 1_000.0, 30.0
    # More looks than there are in PATIENCE_SECONDS.
    LONG = range(int(loss.PATIENCE_SECONDS / loss.LOOK_SECONDS) + 2)

    @pytest.fixture
    def child(self):
        child = subprocess.Popen(["sleep", "60"])
        yield child
        child.kill()
        child.wait()

    @pytest.fixture
    def told(self, monkeypatch):
        told = []
        monkeypatch.setattr(loss, "_tell", told.append)
        return told

    @pytest.fixture
    def look(self, monkeypatch, told):
        """Give a function that looks at a child once, whose lease has so many seconds left."""
        watch = loss.Watch("worker-z@host")

        def look(child, *, left):
            hold = holds.Hold(child.pid, uuid.UUID(ID), self.NOW + left)
            monkeypatch.setattr(holds, "every", lambda: [hold])
            watch.look(self.NOW)

        return look

    def test_tells_of_the_dead_and_forgets_what_they_held(self, look, child, told, monkeypatch):
        forgotten = []
        monkeypatch.setattr(holds, "forget", forgotten.append)
        child.kill()
        until(lambda: loss.has_ended(child.pid))

        look(child, left=self.LEASE)

        assert told == [loss.Loss(ID, f"worker-z@host/{child.pid}", child.pid)]
        assert forgotten == [child.pid]

    def test_leaves_alone_who_renews_in_time(self, look, child, told):
        for _ in self.LONG:
            look(child, left=self.LEASE / 2)

        assert child.poll() is None
        assert told == []

    def test_gives_time_to_one_that_wakes_late(self, look, child):
        look(child, left=-100)
        look(child, left=-100)
        for _ in self.LONG:
            look(child, left=self.LEASE)

        assert child.poll() is None

    def test_ends_one_that_stays_late(self, look, child):
        for _ in self.LONG:
            look(child, left=0.1)

        assert child.wait(5) == -signal.SIGKILL


class TestThread:
    """One thread frees; the event loop only hands over."""

    @pytest.fixture
    def freed(self, monkeypatch, unblocked):
        freed = []

        def free_lost(operation_id, worker, *, timed_out):
            unblocked.wait()
            freed.append(operation_id)
            if operation_id == "away":
                raise OperationalError("the database is away")
            return True

        monkeypatch.setattr(relay, "free_lost", free_lost)
        return freed

    @pytest.fixture
    def unblocked(self):
        unblocked = threading.Event()
        unblocked.set()
        yield unblocked
        unblocked.set()

    def tell(self, operation_id):
        loss._tell(loss.Loss(operation_id, DEAD, UNKNOWN_PID))

    def test_goes_on_after_the_database_was_away(self, freed):
        self.tell("away")
        self.tell("here")

        until(lambda: freed == ["away", "here"])

    def test_keeps_nobody_waiting(self, freed, unblocked):
        unblocked.clear()
        began = time.monotonic()

        for number in range(100):
            self.tell(str(number))

        assert time.monotonic() - began < 0.5
        assert freed == []

        unblocked.set()
        until(lambda: len(freed) == 100)

    def test_waits_until_the_child_has_ended(self, freed):
        child = subprocess.Popen(["sleep", "60"])

        loss._tell(loss.Loss(ID, DEAD, child.pid, timed_out=True))
        time.sleep(0.2)
        assert freed == []
        child.kill()

        until(lambda: freed == [ID])
        child.wait()

    def test_frees_what_a_child_holds_that_cannot_end(self, freed, monkeypatch):
        monkeypatch.setattr(loss, "LONGEST_DEATH_SECONDS", 0.2)
        child = subprocess.Popen(["sleep", "60"])

        loss._tell(loss.Loss(ID, DEAD, child.pid, timed_out=True))

        until(lambda: freed == [ID])
        child.kill()
        child.wait()
