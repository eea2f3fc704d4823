"""What a failure, a cancel or a deadline would leave behind is released before the operation ends."""

from datetime import timedelta

import pytest
from django.utils import timezone

from operations import cancel, jobs, reading, replays
from operations.jobs import Backoff, Duplicate, NotYet, Rejected
from operations.models import DeadLetter, Effect, Operation, Transition
from operations.verify import violations
from tasks import relay
from tasks.retry import CallFailed
from tests.factories import earlier, history, make_claim, make_job, make_operation, take_back, work

pytestmark = pytest.mark.django_db(transaction=True)

NO = Rejected("sold_out", "there is none left")
AWAY = CallFailed("dependency_unavailable", "no answer", "bank", certainty="not_sent")
LOST = CallFailed("outcome_unknown", "no answer", "bank")


class Shop:
    """A job that reserves, authorises and captures, and releases; and what stands at the other side."""

    def __init__(self, monkeypatch, **contract):
        self.stands, self.sent, self.looked_up = {}, [], []
        self.trouble, self.release_trouble = {}, []  # by step: what happens instead of it, or after it
        contract = {"retry": Backoff(1, 1), "no_return": "capture", "compensate": self.release} | contract
        self.job = make_job(self.handle, call=self.call, **contract)
        monkeypatch.setitem(jobs._registry, self.job.name, self.job)

    def call(self, run, *, user_id):
        run.step("reserved", lambda: self._does("reserved"))
        run.effect("authorise", self.send, request={"step": "authorise"}, look_up=self.look_up, timeout=1)
        run.effect("capture", self.send, request={"step": "capture"}, look_up=self.look_up, timeout=1)

    def handle(self, run, answer, **payload):
        self._does("handler")

    def release(self, run, *, user_id):
        self._raise_next(self.release_trouble)
        if run.outcome("authorise", look_up=self.look_up) is not None:
            run.effect("void", self.send, request={"step": "void"}, look_up=self.look_up, timeout=1)
        run.step("released", lambda: self._does("released"))

    def send(self, key, request):
        self.sent.append(key)
        when, error = self.trouble.get(request["step"], ("", None))
        if when != "before":
            self.stands[key] = request["step"]
        if error is not None:
            raise error
        return {"step": request["step"]}

    def look_up(self, key, request):
        self.looked_up.append(key)
        return {"step": request["step"]} if key in self.stands else None

    def _does(self, step):
        if step in self.trouble:
            raise self.trouble[step][1]
        return step

    def _raise_next(self, script):
        if script:
            raise script.pop(0)

    def operation(self, **changes):
        operation = make_operation(job=self.job, **changes)
        Transition.objects.create(
            operation=operation, to_status="queued", reason="accepted", run=0, attempt=0, at=timezone.now()
        )
        return operation

    def work(self, operation):
        earlier(operation, "run_at")
        Effect.objects.filter(kind="outside").update(answers_by=operation.created_at)
        return work(operation, self.job)

    def work_to_the_end(self, operation):
        for _ in range(12):
            operation = self.work(operation)
            if operation.is_final:
                break
        return operation

    @property
    def steps(self):
        return [key.split(":")[1] for key in self.sent]


@pytest.fixture
def shop(monkeypatch):
    return Shop(monkeypatch)


def ends(operation):
    return operation.status, operation.reason


def left():
    """Name the steps that stand."""
    standing = Effect.objects.filter(undone_at=None, certainty__in=("confirmed", "maybe_sent"))
    return list(standing.order_by("id").values_list("step", flat=True))


def unbroken():
    return violations() == []


class TestFailure:
    def test_releases_before_it_ends(self, shop):
        shop.trouble["capture"] = ("before", NO)
        operation = shop.work(shop.operation())
        assert ends(operation) == ("retry_scheduled", "business_rejected")
        assert operation.compensating_for == "failed_permanent business_rejected"
        assert not DeadLetter.objects.exists()

        operation = shop.work(operation)

        assert ends(operation) == ("failed_permanent", "business_rejected")
        assert shop.steps == ["authorise", "capture", "void"]
        assert left() == []
        letter = DeadLetter.objects.get()
        assert (letter.error_message, letter.expected) == ("there is none left", True)
        assert unbroken()

    def test_needs_no_release_if_nothing_was_done(self, shop):
        shop.trouble["reserved"] = ("before", NO)

        operation = shop.work(shop.operation())

        assert ends(operation) == ("failed_permanent", "business_rejected")
        assert history(operation)[-1] == ("processing", "failed_permanent", "business_rejected")

    def test_of_a_job_that_does_not_compensate_is_as_it_was(self, monkeypatch):
        shop = Shop(monkeypatch, compensate=None, no_return="")
        shop.trouble["capture"] = ("before", NO)

        assert ends(shop.work(shop.operation())) == ("failed_permanent", "business_rejected")

    def test_has_attempts_of_its_own_to_release(self, shop):
        shop.trouble["capture"] = ("before", AWAY)
        shop.release_trouble = [AWAY, AWAY]

        operation = shop.work_to_the_end(shop.operation())

        # Three attempts of the work, two that could not release, one that did.
        assert ends(operation) == ("failed_permanent", "attempts_exhausted")
        assert (operation.runs, operation.attempt, left()) == (6, 3, [])

    def test_that_cannot_be_released_is_a_persons(self, shop):
        shop.trouble["capture"] = ("before", NO)
        shop.release_trouble = [AWAY] * 3

        operation = shop.work_to_the_end(shop.operation())

        assert ends(operation) == ("failed_permanent", "compensation_failed")
        assert left() == ["reserved", "authorise"]
        letter = DeadLetter.objects.get()
        with pytest.raises(replays.Refused, match="'reserved' is done and not released"):
            replays.discard(letter.id, actor="ann", reason="no")

        replays.replay(letter.id, actor="ann", reason="the bank is back")
        operation = shop.work_to_the_end(operation)

        assert ends(operation) == ("failed_permanent", "business_rejected")
        assert left() == []

    def test_is_looked_up_first(self, shop):
        """The capture may have been done: nothing is released, and it turns out that it was."""
        shop.trouble["capture"] = ("after", LOST)
        operation = shop.work(shop.operation())
        assert ends(operation) == ("retry_scheduled", "outcome_unknown")

        operation = shop.work(operation)

        assert operation.status == "succeeded"
        assert shop.steps == ["authorise", "capture"]

    def test_past_the_return_releases_nothing_and_goes_on_after_a_replay(self, shop):
        shop.trouble["handler"] = ("", NO)
        operation = shop.work(shop.operation())
        assert ends(operation) == ("failed_permanent", "business_rejected")
        assert left() == ["reserved", "authorise", "capture"]

        shop.trouble.clear()
        replays.replay(DeadLetter.objects.get().id, actor="ann", reason="mended")
        operation = shop.work(operation)

        assert operation.status == "succeeded"
        assert shop.steps == ["authorise", "capture"]

    def test_released_and_replayed_begins_anew_under_new_keys(self, shop):
        shop.trouble["capture"] = ("before", NO)
        operation = shop.work_to_the_end(shop.operation())
        shop.trouble.clear()

        replays.replay(DeadLetter.objects.get().id, actor="ann", reason="there are some again")
        operation = shop.work(operation)

        assert operation.status == "succeeded"
        assert operation.compensating_for == ""
        assert shop.sent[-2:] == [f"{operation.id}:authorise:g2", f"{operation.id}:capture:g2"]
        assert left() == ["reserved", "authorise", "capture"]
        assert unbroken()


class TestLostWorker:
    def test_in_the_last_attempt_releases(self, monkeypatch):
        shop = Shop(monkeypatch, retry=Backoff())
        shop.trouble["capture"] = ("before", AWAY)
        operation = shop.operation()
        claim = make_claim(operation)
        Effect.objects.create(operation=operation, step="reserved", run=1)
        earlier(operation, "lease_expires_at")

        take_back()

        operation = Operation.objects.get()
        assert ends(operation) == ("retry_scheduled", "worker_lost")
        assert operation.compensating_for == "failed_permanent worker_lost"
        assert ends(shop.work(operation)) == ("failed_permanent", "worker_lost")
        assert claim.operation.id == operation.id
        assert unbroken()


class TestDeadline:
    def test_releases_before_it_ends(self, shop):
        shop.trouble["capture"] = ("before", AWAY)
        operation = shop.work(shop.operation())
        earlier(operation, "deadline_at", by=timedelta(days=2))

        assert relay.end_overdue() == 1
        operation = shop.work(operation)

        assert ends(operation) == ("failed_permanent", "deadline_passed")
        assert left() == []
        assert unbroken()

    def test_does_not_end_what_may_have_been_sent(self, shop):
        shop.trouble["authorise"] = ("after", LOST)
        operation = shop.work(shop.operation())
        earlier(operation, "deadline_at", by=timedelta(days=2))

        assert relay.end_overdue() == 0

    def test_of_the_release_ends_as_its_failure(self, shop):
        shop.trouble["capture"] = ("before", NO)
        operation = shop.work(shop.operation())
        earlier(operation, "deadline_at", by=timedelta(days=2))

        assert relay.end_overdue() == 1

        operation.refresh_from_db()
        assert ends(operation) == ("failed_permanent", "compensation_failed")


class TestCancel:
    def ask(self, operation):
        return cancel.cancel(reading.stands(operation.id, owner_id=operation.owner_id)).operation

    def test_releases_before_it_ends(self, shop):
        shop.trouble["capture"] = ("before", AWAY)
        operation = shop.work(shop.operation())

        asked = self.ask(operation)
        operation = shop.work(operation)

        assert asked.compensating_for == "ignored cancelled"
        assert ends(operation) == ("ignored", "cancelled")
        assert shop.steps == ["authorise", "capture", "void"]
        assert left() == []
        assert unbroken()

    def test_waits_for_the_look_up(self, shop):
        shop.trouble["authorise"] = ("after", LOST)
        operation = shop.work(shop.operation())

        asked = self.ask(operation)
        assert (asked.compensating_for, asked.reason) == ("", "outcome_unknown")
        operation = shop.work_to_the_end(operation)

        assert ends(operation) == ("ignored", "cancelled")
        assert shop.steps == ["authorise", "void"]
        assert left() == []

    def test_comes_too_late_past_the_return(self, shop):
        shop.trouble["capture"] = ("after", LOST)
        operation = shop.work(shop.operation())

        with pytest.raises(cancel.NotCancellable, match="'capture' is done"):
            self.ask(operation)

    def test_heard_of_between_two_effects_turns_back(self, shop):
        operation = shop.operation()

        def send(key, request):
            self.ask(Operation.objects.get(id=operation.id))
            Heart.of.heartbeat.cancel_requested = True
            return {}

        class Heart:
            of = None

        real = shop.job.call

        def call(run, **payload):
            Heart.of = run
            return real(run, **payload)

        object.__setattr__(shop.job, "call", call)
        shop.send = send
        operation = shop.work_to_the_end(operation)

        assert ends(operation) == ("ignored", "cancelled")
        assert left() == []


class TestDuplicate:
    def test_ends_and_points_at_the_other(self, monkeypatch):
        shop = Shop(monkeypatch)
        other = "2281f947-0000-4000-8000-000000000000"
        shop.trouble["reserved"] = ("", Duplicate(of=other, message="it is paid"))

        operation = shop.work(shop.operation())

        assert ends(operation) == ("ignored", "duplicate")
        assert operation.data.result == {"duplicate_of": other}


class TestNotYet:
    def test_waits_and_spends_no_attempt(self, shop):
        shop.trouble["reserved"] = ("", NotYet(seconds=5, message="the other purchase of this order"))
        operation = shop.operation()
        for _ in range(5):
            operation = shop.work(operation)

        assert ends(operation) == ("retry_scheduled", "conflict")
        assert (operation.attempt, operation.runs) == (0, 5)
        assert unbroken()
