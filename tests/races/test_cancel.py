"""A cancel and what else can happen to an operation, at one moment: one of them is last, and stays so."""

import random
import uuid
from functools import partial

import pytest

from operations import cancel, claims, lifecycle, reading
from operations.cancel import NotCancellable
from operations.models import FINAL, Effect, Operation, Transition
from tests.factories import earlier, make_claim, make_failure, make_operation, take_back
from tests.threads import aside, meanwhile, others_wait, together, until

pytestmark = pytest.mark.django_db(transaction=True)

ROUNDS = 40


def ask(seen):
    try:
        return cancel.cancel(seen).operation
    except NotCancellable:
        return None


def read(operation):
    return reading.stands(operation.id, owner_id=operation.owner_id)


def claim_of(operation):
    return lifecycle.claim(operation.id, job_type=operation.job_type, worker="a/1", token=uuid.uuid4())


class TestCancel:
    def test_waits_for_a_claim_and_asks_its_run(self):
        operation = make_operation()
        seen = read(operation)

        with meanwhile(lambda: claim_of(operation)):
            asking = aside(lambda: ask(seen))
            until(others_wait)

        asked = asking.result()
        assert (asked.status, asked.cancel_requested_at is None) == ("processing", False)

    def test_lets_no_claim_through_that_waits_for_it(self):
        operation = make_operation()
        seen = read(operation)

        with meanwhile(lambda: ask(seen)):
            claiming = aside(lambda: claim_of(operation))
            until(others_wait)

        assert claiming.result() is None
        assert Operation.objects.get().reason == "cancelled"

    def test_sees_a_step_that_was_recorded_while_it_waited(self):
        """A step, and then the retry: the row waits again, but not as it was seen."""
        claim = make_claim()
        seen = read(claim.operation)

        def record_and_retry():
            assert claims.record_step(claim, step="reserved", result=None)
            assert lifecycle.retry(claim, failure=make_failure(), delay_seconds=0)

        with meanwhile(record_and_retry):
            asking = aside(lambda: ask(seen))
            until(others_wait)

        asking.result()
        assert Operation.objects.get().status == "retry_scheduled", (
            "what a step has reserved is not left behind"
        )

    def test_sees_a_step_of_a_run_that_it_had_not_seen(self):
        """From waiting to waiting, with a run in between: this is what `runs` is named for."""
        operation = make_operation()
        seen = read(operation)

        def run_and_retry():
            claim = claim_of(operation)
            assert claims.record_step(claim, step="reserved", result=None)
            assert lifecycle.retry(claim, failure=make_failure(), delay_seconds=0)

        with meanwhile(run_and_retry):
            asking = aside(lambda: ask(seen))
            until(others_wait)

        asking.result()
        assert Operation.objects.get().status == "retry_scheduled"
        assert Effect.objects.exists()

    @pytest.mark.parametrize("rival", ["succeed", "fail", "retry", "hand_back", "stop"])
    def test_beside_the_end_of_its_run_leaves_one_end(self, rival):
        for _ in range(ROUNDS // 4):
            claim = make_claim(resource="")
            seen = read(claim.operation)

            together(lambda claim=claim: END[rival](claim), lambda seen=seen: ask(seen))

            assert ends(claim.operation) <= 1

    def test_beside_a_take_back_leaves_one_end(self):
        for _ in range(ROUNDS // 4):
            claim = make_claim()
            earlier(claim.operation, "lease_expires_at")
            seen = read(claim.operation)

            together(take_back, lambda seen=seen: ask(seen))

            row = Operation.objects.get(id=claim.operation.id)
            assert ends(row) <= 1
            assert row.reason == "cancelled" or row.cancel_requested_at is not None

    def test_twice_at_once_is_once(self):
        for _ in range(ROUNDS):
            operation = make_operation()

            answers = together(*[lambda operation=operation: ask(read(operation))] * 4)

            assert {answer.reason for answer in answers} == {"cancelled"}
            assert ends(operation) == 1

    def test_with_claims_and_ends_in_any_order_leaves_one_end(self):
        dice = random.Random(7)
        for _ in range(ROUNDS):
            operation = make_operation(resource="")

            how = dice.choice(sorted(END))

            together(partial(run, operation, how), lambda operation=operation: ask(read(operation)))

            assert ends(operation) <= 1


def run(operation, how):
    claim = claim_of(operation)
    return None if claim is None else END[how](claim)


def succeed(claim):
    return lifecycle.succeed(claim, hard_limit=60, version=None, digest="")


END = {
    "succeed": succeed,
    "fail": lambda claim: lifecycle.fail(claim, reason="bug", failure=make_failure()),
    "retry": lambda claim: lifecycle.retry(claim, failure=make_failure(), delay_seconds=0),
    "hand_back": lambda claim: lifecycle.hand_back(claim, error="the worker ends"),
    "stop": cancel.stop,
}


def ends(operation):
    """Count the moves into a final status; the row must be in the last of them."""
    moves = Transition.objects.filter(operation_id=operation.id, to_status__in=FINAL).order_by("id")
    row = Operation.objects.get(id=operation.id)
    assert [move.to_status for move in moves] == ([row.status] if row.status in FINAL else [])
    return len(moves)
