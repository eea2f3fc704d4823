"""Effects and what else can happen to their operation: nothing is sent twice, forgotten or asked for ever."""

import time
import uuid
from contextlib import suppress
from datetime import timedelta

import pytest
from django.db import OperationalError
from django.db.models import F
from django.utils import timezone

import tasks.effects
from operations import effects, jobs, lifecycle, replays
from operations.jobs import Backoff, Duplicate, NotYet, Rejected
from operations.models import (
    DeadLetter,
    Effect,
    EffectEvidence,
    Operation,
    Reason,
    ResourceFence,
    Transition,
    WorkerNode,
)
from operations.verify import violations
from tasks import relay
from tasks.drain import Interrupted
from tasks.effects import Conclusion
from tasks.retry import CallFailed
from tests.factories import earlier, make_claim, make_job, make_operation, take_back, work
from tests.tasks.test_compensation import AWAY, NO, Shop, left
from tests.tasks.test_effects import UNKNOWN, Charging, Provider, begin, effect, ends, lost

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def provider():
    return Provider()


@pytest.fixture
def charging(provider):
    return Charging(provider)


@pytest.fixture
def shop(monkeypatch):
    return Shop(monkeypatch)


def known_fails_once(monkeypatch, *, when):
    """Let the database be away when the effects are read, once, as soon as `when(rows)`."""
    real, failed = effects.known, []

    def known(operation_id):
        rows = real(operation_id)
        if not failed and when(rows):
            failed.append(True)
            raise OperationalError("the connection is lost")
        return rows

    monkeypatch.setattr(effects, "known", known)
    return failed


def steps(provider):
    return [key.split(":")[1] for key in provider.sent]


class Paying(Charging):
    """A job that pays by card, or else from a wallet; `on` says after which errors."""

    def __init__(self, provider, *, on, **contract):
        super().__init__(provider, **contract)
        self.on = on

    def call(self, run, *, user_id):
        for step in ("card", "wallet"):
            try:
                return run.effect(step, self.provider.send, request={"by": step}, **self.effect)
            except self.on as error:
                last = error
        raise last


class TestMoneyTwice:
    def test_nothing_else_is_sent_while_an_effect_is_unknown(self, provider):
        """The card's answer is lost, the job swallows that and takes the wallet: both are charged."""
        paying = Paying(provider, on=Exception)
        provider.script = [("after", lost(category="timeout"))]

        paying.work(paying.operation())

        assert steps(provider) == ["card"]

    @pytest.mark.parametrize("because", [Reason.REPLAYED, Reason.RECONCILED])
    def test_a_replay_looks_up_before_it_sends_what_was_refused(self, provider, monkeypatch, because):
        """The card is refused, the wallet's answer is lost for good; the replay charges the card as well."""
        paying = Paying(provider, on=Rejected)
        monkeypatch.setitem(jobs._registry, paying.job.name, paying.job)
        provider.script = [("before", Rejected("declined", "no")), ("after", lost())]
        provider.blind = lost()
        operation = paying.work(paying.operation())
        Effect.objects.update(window_ends_at=operation.created_at)
        assert ends(paying.work(operation)) == ("failed_permanent", "outcome_unknown")
        assert effects.look_again(operation.id, decided=True)
        provider.blind = None

        replays.replay(DeadLetter.objects.get().id, actor="ann", reason="it is known now", because=because)
        operation = paying.work(operation)

        assert (operation.status, steps(provider)) == ("succeeded", ["card", "wallet"])

    def test_a_step_before_it_that_is_new_waits_for_the_look_up(self, charging, provider):
        """A deploy between the two runs puts another effect before the one that is unknown."""
        provider.script = [("after", lost())]
        operation = charging.work(charging.operation())
        provider.blind = lost()
        old = charging.job.call

        def call(run, *, user_id):
            run.effect("fee", provider.send, request={}, **charging.effect)
            return old(run, user_id=user_id)

        object.__setattr__(charging.job, "call", call)
        charging.work(operation)

        assert steps(provider) == ["charge"]

    def test_not_found_counts_only_a_whole_timeout_after_the_send(self, provider, settings, monkeypatch):
        """The process stalls between intent and send: what it sends then may still be on its way."""
        settings.ANSWER_MARGIN_SECONDS = 0.2
        charging, left_of_it = Charging(provider), []
        monkeypatch.setattr(
            tasks.effects, "crashpoint", lambda name: time.sleep(0.6 if name == "effect.intended" else 0)
        )

        def send(key, request):
            row = Effect.objects.get()
            left_of_it.append((row.answers_by - timezone.now()).total_seconds())
            return {}

        provider.send = send
        charging.work(charging.operation(), answered=False)

        assert all(seconds >= charging.effect["timeout"] for seconds in left_of_it)


class TestForgotten:
    def versioned(self, make, *, version=5):
        """Make an operation that brings a version, and let a newer one be applied after its first run."""
        operation = make.operation(resource="r:1", resource_version=version)
        operation = make.work(operation)
        earlier(operation, "run_at")
        ResourceFence.objects.filter(resource="r:1").update(applied_version=9, applied_by=uuid.uuid4())
        return make.work(operation)

    def test_old_news_does_not_end_what_may_have_been_sent(self, charging, provider):
        provider.script = [("after", lost())]

        operation = self.versioned(charging)

        assert (operation.status, effect(operation).certainty) != ("ignored", "maybe_sent")

    def test_old_news_does_not_end_what_is_reserved(self, shop):
        shop.trouble["capture"] = ("before", AWAY)

        operation = self.versioned(shop)

        assert not operation.is_final or left() == []

    def test_old_news_does_not_end_a_release(self, shop):
        shop.trouble["capture"] = ("before", NO)

        operation = self.versioned(shop)

        assert not operation.is_final or left() == []

    def test_a_duplicate_does_not_end_what_may_have_been_sent(self, charging, provider):
        provider.script = [("after", lost())]
        operation = charging.work(charging.operation())

        def call(run, *, user_id):
            raise Duplicate(of=str(uuid.uuid4()), message="it is paid")

        object.__setattr__(charging.job, "call", call)
        operation = charging.work(operation)

        assert (operation.status, effect(operation).certainty) != ("ignored", "maybe_sent")

    def test_a_duplicate_past_the_return_is_told_to_a_person(self, shop):
        """The money is taken, and then another operation turns out to have paid."""
        shop.trouble["handler"] = ("", Duplicate(of=str(uuid.uuid4()), message="it is paid"))

        operation = shop.work(shop.operation())

        assert "capture" in left()
        assert operation.status != "ignored"

    def test_a_duplicate_in_a_release_leaves_nothing_behind(self, shop):
        shop.trouble["capture"] = ("before", NO)
        operation = shop.work(shop.operation())
        shop.release_trouble = [Duplicate(of=str(uuid.uuid4()), message="it is paid")]

        operation = shop.work(operation)

        assert operation.status != "ignored" or left() == []

    def test_an_answer_of_null_is_an_answer(self, shop):
        """What is done is done, also if the other side says nothing of it (204)."""
        real = shop.send
        shop.send = lambda key, request: real(key, request) and None
        shop.trouble["capture"] = ("before", NO)

        operation = shop.work_to_the_end(shop.operation())

        assert operation.is_final
        assert shop.steps == ["authorise", "capture", "void"]

    def test_a_payload_that_newer_code_does_not_take_can_be_found_later(self, charging, provider):
        provider.script = [("after", lost())]
        operation = charging.work(charging.operation())
        operation.data.payload = {}
        operation.data.save()

        operation = charging.work(operation)

        assert ends(operation) == UNKNOWN or effects.look_again(operation.id, decided=True)

    def test_an_interruption_too_many_is_looked_up(self, provider):
        charging = Charging(provider, retry=Backoff())
        provider.script = [("after", Interrupted("the worker ends"))]

        operation = charging.work(charging.operation(interruptions=10))

        assert effect(operation).certainty == "maybe_sent"
        assert ends(operation) == ("queued", "interrupted")

    def test_an_interruption_too_many_of_a_look_up_costs_nothing(self, provider):
        """It has found out, and the worker ends; the last attempt was spent long ago."""
        charging = Charging(provider, retry=Backoff())
        provider.script = [("after", lost())]
        operation = charging.work(charging.operation(interruptions=10))

        def call(run, *, user_id):
            run.effect("charge", provider.send, request=charging.request, **charging.effect)
            raise Interrupted("the worker ends")

        object.__setattr__(charging.job, "call", call)
        operation = charging.work(operation)

        assert (ends(operation), effect(operation).certainty) == (("queued", "interrupted"), "confirmed")

    def test_an_intent_whose_reading_back_fails_is_looked_up(self, monkeypatch):
        """Committed, and then the database is away: the last attempt dies with what it has reserved."""
        shop = Shop(monkeypatch, retry=Backoff())
        failed = known_fails_once(
            monkeypatch, when=lambda rows: any(row.certainty == "maybe_sent" for row in rows)
        )

        operation = shop.work(shop.operation())

        assert failed
        assert operation.status != "failed_permanent"

    def test_a_lost_last_look_up_can_be_found_later(self, provider, settings):
        """The reconciler sends round again what is dead as `outcome_unknown`, and this says `worker_lost`."""
        charging = Charging(provider, retry=Backoff())
        operation = charging.operation()
        begin(make_claim(operation), operation)
        earlier(operation, "lease_expires_at")
        take_back()
        Operation.objects.update(lookups=settings.MAX_LOOKUPS_BEFORE_A_LOSS - 1)
        earlier(operation, "run_at")
        make_claim(Operation.objects.get())
        earlier(operation, "lease_expires_at")
        take_back()
        assert Operation.objects.get().status == "failed_permanent"

        assert effects.look_again(operation.id, decided=True)

    def test_evidence_against_what_is_recorded_is_shown(self, charging, provider):
        """It was looked up in vain and given up, and then a stalled run's answer comes: it is done."""
        provider.script = [("before", lost("not_sent", "invalid_input"))]
        operation = charging.work(charging.operation())
        assert operation.is_final
        before = violations()

        effects.file(operation.id, run=1, conclusion=Conclusion("charge", 1, "confirmed", {"id": "ch_1"}))

        assert EffectEvidence.objects.exists()
        assert violations() != before


class TestCancelled:
    """By its owner, who is heard of in the middle of a run that looks."""

    def work(self, shop, *, swallows):
        operation = shop.operation()

        def call(run, *, user_id):
            with suppress(*swallows):
                Shop.call(shop, run, user_id=user_id)
            run.heartbeat.cancel_requested = True
            run.check()

        object.__setattr__(shop.job, "call", call)
        return shop.work(operation)

    def test_it_goes_on_while_an_effect_is_unknown(self, shop):
        shop.trouble["authorise"] = ("after", lost())

        assert ends(self.work(shop, swallows=[CallFailed])) == UNKNOWN

    def test_it_goes_on_past_its_return(self, shop):
        assert self.work(shop, swallows=[]).status == "succeeded"


class TestStuck:
    def test_a_look_up_that_kills_its_worker_ends(self, charging, settings):
        """Attempts are left and never spent, so it may go on for ever: the deadline is not judged either."""
        settings.MAX_LOOKUPS_BEFORE_A_LOSS = 3
        operation = charging.operation()
        begin(make_claim(operation), operation)
        for _ in range(settings.MAX_LOOKUPS_BEFORE_A_LOSS + 2):
            earlier(operation, "lease_expires_at")
            take_back()
            operation.refresh_from_db()
            if operation.is_final:
                break
            Operation.objects.update(run_at=timezone.now() - timedelta(seconds=1))
            make_claim(operation)

        assert operation.is_final, f"{operation.lookups} look-ups, attempt {operation.attempt}"

    def test_not_yet_in_look_ups_ends(self, charging, provider, settings):
        settings.MAX_LOOKUPS = 3
        provider.script = [("after", lost())]
        operation = charging.work(charging.operation())

        def call(run, *, user_id):
            raise NotYet(seconds=1, message="another is at it")

        object.__setattr__(charging.job, "call", call)
        for _ in range(settings.MAX_LOOKUPS + 2):
            operation = charging.work(operation)

        assert operation.is_final, f"{operation.lookups} look-ups"

    def test_what_was_surely_not_sent_can_be_sent_after_any_time(self, provider, monkeypatch):
        """A mail that no server took is replayed a day later."""
        charging = Charging(provider, retry=Backoff())
        monkeypatch.setitem(jobs._registry, charging.job.name, charging.job)
        provider.script = [("before", lost("not_sent", "dependency_unavailable"))]
        operation = charging.work(charging.operation())
        assert ends(operation) == ("failed_permanent", "attempts_exhausted")
        Effect.objects.update(window_ends_at=operation.created_at)

        replays.replay(DeadLetter.objects.get().id, actor="ann", reason="the server is back")
        operation = charging.work(operation)

        assert operation.status == "succeeded", ends(operation)

    def test_what_may_be_repeated_does_not_look_up_with_nothing_to_ask(self, provider):
        charging = Charging(provider, effect={"look_up": None, "without_look_up": "repeat"}, retry=Backoff())
        provider.script = [("after", lost())]
        operation = charging.work(charging.operation())

        operation = charging.work(operation)

        assert operation.is_final, ends(operation)

    def test_a_reconciler_each_minute_does_not_use_up_the_look_ups(self, settings):
        """In the longest window that a key has here, 23 hours, beside the operation's own schedule."""
        own = 24 * 3_600 / settings.LONGEST_LOOKUP_PAUSE_SECONDS + 12

        assert 23 * 60 + own < settings.MAX_LOOKUPS

    def test_a_look_up_that_has_succeeded_is_not_unknown(self, monkeypatch):
        """It is recorded, and reading it back fails: a good purchase is buried, or taken back."""
        shop = Shop(monkeypatch, no_return="")
        shop.trouble["capture"] = ("after", lost())
        operation = shop.work(shop.operation())
        shop.trouble.clear()
        failed = known_fails_once(
            monkeypatch,
            when=lambda rows: any(r.step == "capture" and r.certainty == "confirmed" for r in rows),
        )

        operation = shop.work(operation)

        assert failed
        assert operation.compensating_for == ""
        assert operation.status in ("succeeded", "retry_scheduled"), ends(operation)


class TestOtherReleases:
    """Of the code: a relay that does not know a job decides nothing that only the job can undo."""

    def test_leave_what_is_late_and_reserved(self, shop, monkeypatch):
        shop.trouble["capture"] = ("before", AWAY)
        operation = shop.work(shop.operation())
        earlier(operation, "deadline_at", by=timedelta(days=2))
        monkeypatch.delitem(jobs._registry, shop.job.name)

        relay.end_overdue()

        operation.refresh_from_db()
        assert not operation.is_final or left() == []

    def test_leave_what_a_lost_worker_has_reserved(self, monkeypatch):
        shop = Shop(monkeypatch, retry=Backoff())
        operation = shop.operation()
        make_claim(operation)
        Effect.objects.create(operation=operation, step="reserved", run=1)
        earlier(operation, "lease_expires_at")
        monkeypatch.delitem(jobs._registry, shop.job.name)

        take_back()

        operation.refresh_from_db()
        assert not operation.is_final or left() == []

    def test_say_still_that_the_outcome_is_unknown(self, charging, provider, monkeypatch):
        provider.script = [("after", lost())]
        operation = charging.work(charging.operation())
        monkeypatch.setattr(lifecycle, "judging_types", lambda: {"silence": 60, "known_after": 0})
        WorkerNode.objects.create(name="w", kind="worker", release="1", job_types=["other.job"])

        lifecycle.set_aside(operation, actor="relay")

        operation.refresh_from_db()
        assert operation.reason == "outcome_unknown"


class TestNames:
    def test_an_effect_is_not_a_step_of_that_name(self, provider):
        """It gives the step's result for the answer, and sends nothing: goods without money."""

        def call(run, *, user_id):
            run.step("charge", lambda: {"note": 1})
            return run.effect("charge", provider.send, request={}, look_up=provider.look_up)

        job = make_job(lambda run, answer, **payload: answer, call=call)
        operation = work(make_operation(job=job), job)

        assert operation.status != "succeeded" or len(provider.sent) == 1

    def test_one_name_is_one_request_in_a_run(self, provider):
        """A loop over items ships the first, and is told so of all."""

        def call(run, *, user_id):
            return [run.effect("ship", provider.send, request={"item": item}) for item in (1, 2)]

        job = make_job(lambda run, answer, **payload: answer, call=call)
        operation = work(make_operation(job=job), job)

        assert operation.status != "succeeded" or len(provider.sent) == 2


class TestBudget:
    def test_of_a_second_send_is_given_back_by_a_drain(self, charging, provider):
        provider.script = [("before", lost()), ("before", Interrupted("the worker ends"))]
        operation = charging.work(charging.operation())

        operation = charging.work(operation)

        assert ends(operation) == ("queued", "interrupted")
        assert operation.attempt == 1, "SIGTERM burnt an attempt"

    def test_of_what_is_refused_for_now_is_the_same_when_a_look_up_says_so(self, charging, provider):
        provider.script = [("after", lost())]
        operation = charging.work(charging.operation())
        provider.blind = lost("refused", "conflict")

        operation = charging.work(operation)

        assert ends(operation) == ("retry_scheduled", "conflict")


class TestVerify:
    def broken(self):
        return [(each.invariant, each.what) for each in violations()]

    def test_knows_a_release_whose_last_worker_was_lost(self, shop):
        shop.trouble["capture"] = ("before", NO)
        operation = shop.work(shop.operation())
        Operation.objects.update(attempt=F("max_attempts") - 1)
        earlier(operation, "run_at")
        make_claim(Operation.objects.get())
        earlier(operation, "lease_expires_at")
        take_back()
        operation.refresh_from_db()
        assert ends(operation) == ("failed_permanent", "compensation_failed")

        assert [each for each in self.broken() if each[0] == "I4"] == []

    def test_knows_that_to_turn_back_begins_the_attempts_anew(self, shop):
        operation = shop.operation()
        for _ in range(11):
            shop.trouble["capture"] = ("before", Interrupted("the worker ends"))
            Effect.objects.filter(step="capture").delete()
            operation = shop.work(operation)
        shop.trouble["capture"] = ("before", NO)
        Effect.objects.filter(step="capture").delete()
        operation = shop.work(operation)
        assert (operation.compensating_for, operation.attempt) == ("failed_permanent business_rejected", 0)

        assert [each for each in self.broken() if "handed back" in each[1]] == []

    def test_knows_the_pause_of_not_yet(self, monkeypatch):
        """The first attempt failed, and the second found that another has to end first, in a moment."""
        shop = Shop(monkeypatch, retry=Backoff(30, 30, 30))
        long_ago = timezone.now() - timedelta(hours=1)
        operation = make_operation(job=shop.job, status="retry_scheduled", reason="dependency_unavailable")
        for run, move in enumerate(
            (("", "queued"), ("queued", "processing"), ("processing", "retry_scheduled"))
        ):
            Transition.objects.create(
                operation=operation,
                from_status=move[0],
                to_status=move[1],
                reason=("accepted", "", "dependency_unavailable")[run],
                run=min(run, 1),
                attempt=min(run, 1),
                at=long_ago,
            )
        shop.trouble["reserved"] = ("", NotYet(seconds=0.1, message="another is at it"))
        operation = shop.work(operation)
        assert (ends(operation), operation.attempt) == (("retry_scheduled", "conflict"), 1)
        shop.trouble.clear()
        time.sleep(max(0.0, (operation.run_at - timezone.now()).total_seconds()))
        operation = work(operation, shop.job)
        assert operation.status == "succeeded"

        assert [each for each in self.broken() if each[0] == "I7"] == []
