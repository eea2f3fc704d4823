"""The rows of effects: each is written under the claim, the lease and the fence, or not at all."""

import uuid
from datetime import timedelta

import pytest
from django.db import transaction
from django.db.models import F

from operations import effects
from operations.effects import Conclusion, Intent
from operations.models import Effect, Operation, ResourceFence
from tests.factories import earlier, make_claim, make_operation

pytestmark = pytest.mark.django_db

STEP = "charge"


@pytest.fixture
def claim():
    return make_claim(make_operation())


def proof_of(claim, **changes):
    operation = claim.operation
    fields = {"id": operation.id, "token": claim.token, "resource": operation.resource, "fence": claim.fence}
    return fields | changes


def intend(claim, *, step=STEP, generation=1, counts=False, **changes):
    """Write an intent as a run does: all of it or nothing."""
    intent = Intent(
        step=step,
        generation=generation,
        key=f"{claim.operation.id}:{step}:g{generation}",
        request={},
        window=timedelta(hours=23),
        timeout_seconds=10,
        counts=counts,
    )
    with transaction.atomic():
        done = effects.intend(proof_of(claim, **changes), intent)
        transaction.set_rollback(not done)
    return done


def conclude(claim, certainty="confirmed", **changes):
    with transaction.atomic():
        done = effects.conclude(proof_of(claim, **changes), Conclusion(STEP, 1, certainty, {"id": 1}))
        transaction.set_rollback(not done)
    return done


def another_claims_the_resource(claim):
    ResourceFence.objects.filter(resource=claim.operation.resource).update(fence=F("fence") + 1)


def the_lease_ends(claim):
    earlier(claim.operation, "lease_expires_at")


def another_holds_it(claim):
    Operation.objects.filter(id=claim.operation.id).update(claim_token=uuid.uuid4())


LOSSES = [another_claims_the_resource, the_lease_ends, another_holds_it]


class TestIntend:
    def test_is_written_as_maybe_sent(self, claim):
        assert intend(claim)

        assert Effect.objects.get().certainty == "maybe_sent"

    @pytest.mark.parametrize("lose", LOSSES)
    def test_is_refused_to_who_may_write_no_more(self, claim, lose):
        lose(claim)

        assert not intend(claim)
        assert not Effect.objects.exists()

    def test_begins_the_lease_anew(self, claim, settings):
        Operation.objects.update(lease_expires_at=F("started_at") + timedelta(seconds=2))

        intend(claim)

        row = Operation.objects.get()
        assert row.lease_expires_at - row.started_at > timedelta(seconds=settings.LEASE_SECONDS - 1)

    def test_lets_a_look_up_wait_for_the_call_and_two_margins(self, claim, settings):
        """One until it is sent, and one for a call that takes longer than it should."""
        settings.ANSWER_MARGIN_SECONDS = 3.0

        intend(claim)

        row = Effect.objects.get()
        assert (row.answers_by - row.sent_at).total_seconds() == pytest.approx(16, abs=0.1)

    def test_is_refused_while_it_is_unknown_what_became_of_another(self, claim):
        intend(claim)

        assert not intend(claim, step="fee")
        assert not intend(claim, generation=2)

    def test_spends_an_attempt_if_it_is_to(self, claim):
        Operation.objects.update(attempt=F("max_attempts"))

        assert intend(claim)
        assert not intend(claim, counts=True)

    @pytest.mark.parametrize("certainty", ["confirmed", "refused"])
    def test_is_not_written_again_once_it_is_known(self, claim, certainty):
        intend(claim)
        conclude(claim, certainty)

        assert not intend(claim)
        assert Effect.objects.get().certainty == certainty

    def test_is_not_sent_again_when_its_key_may_be_forgotten(self, claim):
        intend(claim)
        Effect.objects.update(window_ends_at=F("sent_at"))

        assert not intend(claim)

    def test_of_what_was_surely_not_sent_begins_a_window_of_its_own(self, claim):
        intend(claim)
        conclude(claim, "not_sent")
        Effect.objects.update(window_ends_at=F("sent_at"), answers_by=F("sent_at"))

        assert intend(claim)

        row = Effect.objects.get()
        assert row.window_ends_at - row.sent_at > timedelta(hours=22)
        assert row.answers_by > row.sent_at
        assert (row.certainty, row.concluded_by) == ("maybe_sent", "")

    def test_sent_again_keeps_the_window_of_the_first_time(self, claim):
        intend(claim)
        ends_at = Effect.objects.get().window_ends_at

        assert intend(claim)

        assert Effect.objects.get().window_ends_at == ends_at


class TestConclude:
    @pytest.mark.parametrize("lose", LOSSES)
    def test_is_refused_to_who_may_write_no_more(self, claim, lose):
        intend(claim)
        lose(claim)

        assert not conclude(claim)
        assert Effect.objects.get().certainty == "maybe_sent"

    def test_is_written_once(self, claim):
        intend(claim)

        assert conclude(claim)
        assert not conclude(claim, "refused")
        assert (Effect.objects.get().certainty, Effect.objects.get().concluded_by) == (
            "confirmed",
            "worker-a/1",
        )


class TestLookAgain:
    @pytest.fixture
    def waiting(self):
        later = make_operation(status="retry_scheduled", reason="outcome_unknown", step=STEP)
        Operation.objects.update(run_at=F("deadline_at"))
        return later

    def sent(self, operation, certainty="maybe_sent"):
        Effect.objects.create(
            operation=operation,
            step=STEP,
            kind="outside",
            certainty=certainty,
            key="k",
            request={},
            sent_at=operation.created_at,
            run=1,
        )

    def test_makes_a_look_up_due(self, waiting):
        self.sent(waiting)

        assert effects.look_again(waiting.id)
        assert Operation.objects.get().run_at < waiting.deadline_at

    def test_leaves_alone_what_has_nothing_to_look_up(self, waiting):
        self.sent(waiting, "confirmed")

        assert not effects.look_again(waiting.id)
        assert Operation.objects.get().run_at == waiting.deadline_at

    def test_marks_a_dead_one_only_when_the_other_side_knows(self):
        dead = make_operation(status="failed_permanent", reason="outcome_unknown", step=STEP)
        self.sent(dead)

        assert not effects.look_again(dead.id)
        assert Effect.objects.get().found_at is None
        assert effects.look_again(dead.id, decided=True)
        assert Effect.objects.get().found_at is not None


class TestWorstCertainty:
    @pytest.mark.parametrize(
        ("all_of_them", "worst"),
        [((), ""), (("refused", "confirmed"), "confirmed"), (("confirmed", "maybe_sent"), "maybe_sent")],
    )
    def test_names_what_is_known_least(self, all_of_them, worst):
        operation = make_operation()
        for number, certainty in enumerate(all_of_them):
            Effect.objects.create(
                operation=operation,
                step=f"s{number}",
                kind="outside",
                certainty=certainty,
                key="k",
                request={},
                sent_at=operation.created_at,
                run=1,
            )

        assert effects.worst_certainty(operation.id) == worst
