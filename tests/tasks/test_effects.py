"""Effects outside: sent once under one key, and looked up before all else when nobody knows."""

from datetime import timedelta

import pytest
from django.db import connection

from operations import claims, effects, replays
from operations.jobs import Backoff, Rejected
from operations.models import DeadLetter, Effect, EffectEvidence, Operation
from tasks.drain import Interrupted
from tasks.retry import CallFailed
from tests.factories import earlier, make_claim, make_job, make_operation, take_back, work

pytestmark = pytest.mark.django_db(transaction=True)

UNKNOWN = ("retry_scheduled", "outcome_unknown")


class Provider:
    """The other side: what it has done, by key, and what it does with the next request."""

    def __init__(self):
        self.done, self.sent, self.looked_up = {}, [], []
        self.script = []  # for the next sends: an error, raised before or after it is done
        self.blind = None  # an error that look-ups meet

    def send(self, key, request):
        assert not connection.in_atomic_block
        self.sent.append(key)
        when, error = self.script.pop(0) if self.script else ("", None)
        if when != "before":
            self.done.setdefault(key, {"of": request})
        if error is not None:
            raise error
        return self.done[key]

    def look_up(self, key, request):
        self.looked_up.append(key)
        if self.blind is not None:
            raise self.blind
        return self.done.get(key)


class Charging:
    """A job with one effect."""

    def __init__(self, provider, *, effect=None, **contract):
        self.provider, self.answers = provider, []
        self.effect = {"look_up": provider.look_up, "timeout": 1.0} | (effect or {})
        self.request = {"amount": 100}
        self.job = make_job(
            lambda run, answer, **payload: answer,
            **{"call": self.call, "retry": Backoff(1, 1, 1), **contract},
        )

    def call(self, run, *, user_id):
        self.answers.append(run.effect("charge", self.provider.send, request=self.request, **self.effect))
        return self.answers[-1]

    def operation(self, **changes):
        return make_operation(job=self.job, **changes)

    def work(self, operation, *, answered=True):
        """Do what a worker does when it is due; `answered`: the other side would have answered by now."""
        earlier(operation, "run_at")
        if answered:
            Effect.objects.filter(operation=operation, kind="outside").update(answers_by=operation.created_at)
        return work(operation, self.job)


@pytest.fixture
def provider():
    return Provider()


@pytest.fixture
def charging(provider):
    return Charging(provider)


def lost(certainty="maybe_sent", category="outcome_unknown", **more):
    return CallFailed(category, "no answer", "bank", certainty=certainty, **more)


def effect(operation):
    return Effect.objects.filter(operation=operation).latest("id")


def ends(operation):
    return operation.status, operation.reason


class TestSend:
    def test_gives_the_answer_and_keeps_the_receipt(self, charging, provider):
        operation = charging.work(charging.operation())

        assert operation.status == "succeeded"
        assert charging.answers == [{"of": {"amount": 100}}]
        assert provider.sent == [f"{operation.id}:charge:g1"]
        kept = effect(operation)
        assert (kept.certainty, kept.result) == ("confirmed", {"of": {"amount": 100}})

    def test_is_written_down_before(self, charging, provider):
        seen = []
        provider.send = lambda key, request: seen.append(Effect.objects.values().get()) or {}

        charging.work(charging.operation())

        assert (seen[0]["certainty"], seen[0]["request"]) == ("maybe_sent", {"amount": 100})

    def test_is_done_once_in_an_operations_life(self, charging, provider):
        operation = charging.operation()
        failing = Charging(provider)
        object.__setattr__(failing.job, "handler", raiser(lost(category="timeout")))
        failing.work(operation)

        operation = charging.work(operation)

        assert operation.status == "succeeded"
        assert len(provider.sent) == 1

    def test_belongs_into_the_call(self, provider):
        sent = []
        job = make_job(
            lambda run, answer, **payload: run.effect(
                "charge", lambda key, request: sent.append(key), request={}
            )
        )

        operation = work(make_operation(job=job), job)

        assert ends(operation) == ("failed_permanent", "bug")
        assert "no transaction open" in operation.data.error["message"]
        assert sent == []

    def test_is_not_made_by_a_run_that_lost_its_claim(self, charging, provider):
        def call(run, *, user_id):
            Operation.objects.update(claim_token="2281f947-0000-4000-8000-000000000000")
            return charging.call(run, user_id=user_id)

        object.__setattr__(charging.job, "call", call)
        charging.work(charging.operation())

        assert provider.sent == []
        assert not Effect.objects.exists()

    def test_is_not_made_when_the_lease_may_end_before_the_answer(self, charging, provider, settings):
        settings.HEARTBEAT_SECONDS = settings.LEASE_SECONDS

        charging.work(charging.operation())

        assert provider.sent == []
        assert effect(Operation.objects.get()).certainty == "maybe_sent"


class TestUnknownOutcome:
    def test_spends_no_attempt_and_is_shown(self, charging, provider):
        provider.script = [("after", lost())]

        operation = charging.work(charging.operation())

        assert ends(operation) == UNKNOWN
        assert (operation.attempt, operation.lookups) == (1, 0)
        assert effect(operation).certainty == "maybe_sent"

    def test_is_looked_up_before_anything_else(self, charging, provider):
        provider.script = [("after", lost())]
        operation = charging.work(charging.operation())

        operation = charging.work(operation)

        assert operation.status == "succeeded"
        assert (len(provider.sent), len(provider.looked_up)) == (1, 1)
        assert (operation.attempt, operation.lookups, operation.runs) == (1, 1, 2)

    def test_is_sent_again_under_the_same_key_if_surely_not_done(self, charging, provider):
        provider.script = [("before", lost())]
        operation = charging.work(charging.operation())
        charging.request = {"amount": 999}  # newer code would ask for something else

        operation = charging.work(operation)

        assert operation.status == "succeeded"
        assert provider.sent == [f"{operation.id}:charge:g1"] * 2
        assert provider.done == {f"{operation.id}:charge:g1": {"of": {"amount": 100}}}
        assert operation.attempt == 2  # the second send counts

    def test_of_a_look_up_that_comes_too_early_proves_nothing(self, charging, provider):
        provider.script = [("before", lost())]
        operation = charging.work(charging.operation())

        operation = charging.work(operation, answered=False)

        assert ends(operation) == UNKNOWN
        assert len(provider.sent) == 1
        assert operation.run_at >= effect(operation).answers_by - timedelta(seconds=1)

    def test_is_looked_up_without_an_attempt_left(self, provider):
        charging = Charging(provider, retry=Backoff())
        provider.script = [("after", lost())]
        operation = charging.work(charging.operation())
        assert operation.attempt == operation.max_attempts

        assert charging.work(operation).status == "succeeded"

    def test_does_not_send_again_without_an_attempt_left(self, provider):
        charging = Charging(provider, retry=Backoff())
        provider.script = [("before", lost())]
        operation = charging.work(charging.operation())

        operation = charging.work(operation)

        assert ends(operation) == ("failed_permanent", "attempts_exhausted")
        assert len(provider.sent) == 1
        assert effect(operation).certainty == "not_sent"

    def test_outlives_the_deadline(self, charging, provider):
        provider.script = [("after", lost())]
        operation = charging.work(charging.operation())
        earlier(operation, "deadline_at", by=timedelta(days=2))

        assert charging.work(operation).status == "succeeded"

    def test_is_asked_again_while_look_ups_fail(self, charging, provider):
        provider.script, provider.blind = [("after", lost())], lost(category="dependency_unavailable")
        operation = charging.operation()
        for _ in range(6):
            operation = charging.work(operation)

        assert ends(operation) == UNKNOWN
        assert (operation.attempt, operation.lookups, len(provider.sent)) == (1, 5, 1)

    def test_is_not_known_because_the_look_up_could_not_be_sent(self, charging, provider):
        """That nothing left us proves something of the look-up, and nothing of what was sent before it."""
        provider.script = [("after", lost())]
        provider.blind = lost("not_sent", "dependency_unavailable")
        operation = charging.work(charging.operation())

        operation = charging.work(operation)

        assert ends(operation) == UNKNOWN
        assert (effect(operation).certainty, len(provider.sent)) == ("maybe_sent", 1)

    def test_sent_again_in_vain_has_spent_its_attempt(self, provider):
        charging = Charging(provider, retry=Backoff(1))
        away = lost("not_sent", "dependency_unavailable")
        provider.script = [("before", lost()), ("before", away)]
        operation = charging.work(charging.operation())

        operation = charging.work(operation)

        assert ends(operation) == ("failed_permanent", "attempts_exhausted")
        assert operation.attempt == operation.max_attempts == 2

    def test_is_a_persons_when_the_key_is_forgotten(self, charging, provider):
        provider.script, provider.blind = [("after", lost())], lost()
        operation = charging.work(charging.operation())
        Effect.objects.update(window_ends_at=operation.created_at)

        operation = charging.work(operation)

        assert ends(operation) == ("failed_permanent", "outcome_unknown")
        assert DeadLetter.objects.get().certainty == "maybe_sent"

    def test_is_never_sent_again_once_the_key_is_forgotten(self, charging, provider):
        provider.script = [("before", lost())]
        operation = charging.work(charging.operation())
        Effect.objects.update(window_ends_at=operation.created_at)

        operation = charging.work(operation)

        assert ends(operation) == ("failed_permanent", "outcome_unknown")
        assert len(provider.sent) == 1
        assert effect(operation).certainty == "maybe_sent"  # "not found" means little by now

    def test_is_a_persons_after_so_many_look_ups(self, charging, provider, settings):
        settings.MAX_LOOKUPS = 2
        provider.script, provider.blind = [("after", lost())], lost()
        operation = charging.operation()
        for _ in range(4):
            operation = charging.work(operation)

        assert ends(operation) == ("failed_permanent", "outcome_unknown")
        assert operation.lookups == 2

    def test_of_a_lost_worker_is_looked_up_with_no_attempt_left(self, provider):
        charging = Charging(provider, retry=Backoff())
        operation = charging.operation()
        claim = make_claim(operation)
        begin(claim, operation)
        earlier(operation, "lease_expires_at")
        take_back()
        assert Operation.objects.get().status == "retry_scheduled"
        provider.done[f"{operation.id}:charge:g1"] = {"of": "the lost run"}

        operation = charging.work(operation)

        assert operation.status == "succeeded"
        assert charging.answers == [{"of": "the lost run"}]
        assert provider.sent == []

    def test_keeps_its_run_from_success_though_the_job_hides_it(self, charging, provider):
        provider.script = [("after", lost())]

        def call(run, *, user_id):
            try:
                return charging.call(run, user_id=user_id)
            except CallFailed:
                return None

        object.__setattr__(charging.job, "call", call)

        assert ends(charging.work(charging.operation())) == UNKNOWN

    def test_is_kept_over_a_drain(self, charging, provider):
        provider.script = [("after", Interrupted("the worker ends"))]

        operation = charging.work(charging.operation())

        assert ends(operation) == ("queued", "interrupted")
        assert charging.work(operation).status == "succeeded"
        assert len(provider.sent) == 1

    def test_given_back_by_a_drain_as_a_look_up_gives_no_attempt_back(self, charging, provider):
        provider.script, provider.blind = [("after", lost())], Interrupted("the worker ends")
        operation = charging.work(charging.operation())

        operation = charging.work(operation)

        assert (operation.attempt, operation.lookups, operation.interruptions) == (1, 1, 1)

    def test_cannot_be_discarded_and_is_looked_up_by_a_replay(self, charging, provider):
        provider.script, provider.blind = [("after", lost())], lost()
        operation = charging.work(charging.operation())
        Effect.objects.update(window_ends_at=operation.created_at)
        charging.work(operation)
        letter = DeadLetter.objects.get()
        assert not replays.preview_discard(letter).eligible
        with pytest.raises(replays.Refused, match="'charge' may have been done"):
            replays.discard(letter.id, actor="ann", reason="no")

        provider.blind = None
        Operation.objects.update(status="queued", reason="replayed", finished_at=None, replays=1)
        operation = charging.work(operation)

        assert operation.status == "succeeded"
        assert len(provider.sent) == 1


class TestResend:
    def test_goes_before_the_look_up_while_the_key_lasts(self, provider):
        charging = Charging(provider, effect={"resend": True})
        provider.script = [("after", lost())]
        operation = charging.work(charging.operation())

        operation = charging.work(operation)

        assert operation.status == "succeeded"
        assert (provider.sent, provider.looked_up) == ([f"{operation.id}:charge:g1"] * 2, [])
        assert (operation.attempt, operation.lookups) == (2, 1)

    def test_is_not_made_without_an_attempt_or_after_the_window(self, provider):
        charging = Charging(provider, effect={"resend": True}, retry=Backoff())
        provider.script = [("after", lost())]
        operation = charging.work(charging.operation())

        operation = charging.work(operation)

        assert operation.status == "succeeded"
        assert (len(provider.sent), len(provider.looked_up)) == (1, 1)


class TestNotSent:
    def test_is_tried_again_as_any_failure(self, charging, provider):
        provider.script = [("before", lost("not_sent", "dependency_unavailable"))]
        operation = charging.work(charging.operation())
        assert ends(operation) == ("retry_scheduled", "dependency_unavailable")

        operation = charging.work(operation)

        assert operation.status == "succeeded"
        assert (operation.attempt, operation.lookups, provider.looked_up) == (2, 0, [])
        assert provider.sent == [f"{operation.id}:charge:g1"] * 2


class TestRefused:
    def test_is_final_and_told_again(self, charging, provider):
        provider.script = [("before", Rejected("expired_card", "the card has expired"))]

        operation = charging.work(charging.operation())

        assert ends(operation) == ("failed_permanent", "business_rejected")
        assert effect(operation).certainty == "refused"

    def test_is_not_asked_again_by_a_run_that_finds_it(self, charging, provider):
        provider.script = [("before", Rejected("expired_card", "the card has expired"))]
        operation = charging.operation()
        object.__setattr__(charging.job, "handler", raiser(AssertionError("must not come here")))
        swallow = charging.job.call

        def call(run, *, user_id):
            try:
                return swallow(run, user_id=user_id)
            except Rejected:
                raise lost(category="timeout") from None

        object.__setattr__(charging.job, "call", call)
        operation = charging.work(operation)
        object.__setattr__(charging.job, "call", swallow)

        operation = charging.work(operation)

        assert ends(operation) == ("failed_permanent", "business_rejected")
        assert len(provider.sent) == 1

    def test_for_now_is_tried_under_new_keys_and_then_final(self, charging, provider):
        soft = lost("refused", "conflict")
        provider.script = [("before", soft)] * 5
        operation = charging.operation()
        for _ in range(4):
            operation = charging.work(operation)

        assert ends(operation) == ("failed_permanent", "business_rejected")
        assert provider.sent == [f"{operation.id}:charge:g{n}" for n in (1, 2, 3)]

    def test_opens_the_next_generation_after_a_replay(self, charging, provider):
        provider.script = [("before", Rejected("expired_card", "the card has expired"))]
        operation = charging.work(charging.operation())
        Operation.objects.update(status="queued", reason="replayed", finished_at=None, replays=1, attempt=0)

        operation = charging.work(operation)

        assert operation.status == "succeeded"
        assert provider.sent == [f"{operation.id}:charge:g{n}" for n in (1, 2)]


class TestWithoutLookUp:
    def test_is_parked_for_a_person(self, provider):
        charging = Charging(provider, effect={"look_up": None})
        provider.script = [("after", lost())]
        operation = charging.work(charging.operation())

        operation = charging.work(operation)

        assert ends(operation) == ("failed_permanent", "outcome_unknown")
        assert len(provider.sent) == 1

    def test_is_repeated_if_that_harms_nobody(self, provider):
        charging = Charging(provider, effect={"look_up": None, "without_look_up": "repeat"})
        provider.script = [("after", lost())]
        operation = charging.work(charging.operation())

        operation = charging.work(operation)

        assert operation.status == "succeeded"
        assert provider.sent == [f"{operation.id}:charge:g1"] * 2


class TestLateAnswer:
    def test_is_filed_as_evidence_and_changes_nothing(self, charging, provider):
        def send(key, request):
            Operation.objects.update(claim_token="2281f947-0000-4000-8000-000000000000")
            return {"charge": "ch_1"}

        provider.send = send
        charging.work(charging.operation())

        evidence = EffectEvidence.objects.get()
        assert (evidence.certainty, evidence.content) == ("confirmed", {"charge": "ch_1"})
        assert Effect.objects.get().certainty == "maybe_sent"


class TestLostCommit:
    @pytest.mark.parametrize("point", ["intend", "conclude"])
    def test_is_learned_from_the_row(self, charging, provider, point, monkeypatch):
        real, cut = getattr(effects, point), []

        def once(*args):
            done = real(*args)
            if not cut:
                cut.append(done)
                connection.connection.commit()
                with connection.cursor() as cursor:
                    cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
            return done

        monkeypatch.setattr(effects, point, once)

        operation = charging.work(charging.operation())

        assert operation.status == "succeeded"
        assert len(provider.sent) == 1


class TestIntentWhoseCommitIsLost:
    def test_is_not_taken_for_the_one_of_an_earlier_run(self, charging, provider, monkeypatch):
        """The second send's intent was not committed: what stands there is the first one's."""
        provider.script = [("before", lost())]
        charging.effect["resend"] = True
        operation = charging.work(charging.operation())
        real, cut = effects.intend, []

        def intend(*args):
            if not cut:
                cut.append(True)
                with connection.cursor() as cursor:
                    cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
            return real(*args)

        monkeypatch.setattr(effects, "intend", intend)
        operation = charging.work(operation)

        assert cut
        assert (operation.status, effect(operation).run, operation.attempt) == ("succeeded", 2, 2)


def raiser(error):
    def fail(*args, **values):
        raise error

    return fail


def begin(claim, operation):
    """Write an intent as a run would that dies before it hears of the answer."""
    intent = effects.Intent(
        "charge", 1, f"{operation.id}:charge:g1", {"amount": 100}, timedelta(hours=23), timeout_seconds=1
    )
    proof = {"id": operation.id, "token": claim.token, "resource": operation.resource, "fence": claim.fence}
    assert effects.intend(proof, intent)
    assert claims.recall(operation.id, token=claim.token).looks_up
