"""A transaction whose outcome is known, although the database gave it up or its answer was lost."""

import pytest
from django.db import OperationalError, connection

from operations import claims, lifecycle
from operations.certainty import certain
from operations.claims import ClaimLost
from operations.models import Operation
from tests.factories import make_claim

pytestmark = pytest.mark.django_db(transaction=True)

DEADLOCK, NOT_SERIALIZABLE, LOCK_NOT_AVAILABLE = "40P01", "40001", "55P03"


def fail_with(code):
    with connection.cursor() as cursor:
        cursor.execute(f"DO $$ BEGIN RAISE EXCEPTION 'on purpose' USING ERRCODE = '{code}'; END $$")


def lose_the_connection():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


class Tries:
    """A transaction that goes wrong in each of the given ways before it succeeds, and counts its tries."""

    def __init__(self, *troubles):
        self.number = 0
        self._troubles = list(troubles)

    def __call__(self):
        self.number += 1
        if self._troubles:
            self._troubles.pop(0)()
        return "done"


def deadlock():
    fail_with(DEADLOCK)


class TestCertain:
    def test_gives_the_result(self):
        assert certain(Tries(), learn=lambda: pytest.fail("nothing is to be learned")) == "done"

    @pytest.mark.parametrize("code", [DEADLOCK, NOT_SERIALIZABLE])
    def test_repeats_what_the_database_gave_up(self, code):
        tries = Tries(lambda: fail_with(code), lambda: fail_with(code))

        assert certain(tries, learn=lambda: pytest.fail("it was rolled back")) == "done"

        assert tries.number == 3

    def test_gives_up_after_three_tries(self):
        tries = Tries(deadlock, deadlock, deadlock, deadlock)

        with pytest.raises(OperationalError, match="on purpose"):
            certain(tries, learn=lambda: None)

        assert tries.number == 3

    def test_does_not_repeat_what_would_be_the_same_again(self):
        tries = Tries(lambda: fail_with(LOCK_NOT_AVAILABLE))

        with pytest.raises(OperationalError):
            certain(tries, learn=lambda: None)

        assert tries.number == 1

    def test_repeats_over_a_new_connection_what_did_not_take_effect(self):
        tries = Tries(lose_the_connection)

        assert certain(tries, learn=lambda: None) == "done"

        assert tries.number == 2

    def test_does_not_repeat_what_took_effect_although_its_answer_was_lost(self):
        claim = make_claim()

        def succeed_and_lose_the_answer():
            lifecycle.succeed(claim, hard_limit=40, version=None, digest="")
            lose_the_connection()

        tries = Tries(succeed_and_lose_the_answer)

        learned = certain(tries, learn=lambda: claims.outcome(claim))

        assert (learned.status, tries.number) == ("succeeded", 1)

    def test_gives_up_what_is_anothers_by_now(self):
        claim = make_claim()

        def lose_everything():
            Operation.objects.update(claim_token=None, status="queued", lease_expires_at=None, claimed_by="")
            lose_the_connection()

        with pytest.raises(ClaimLost):
            certain(Tries(lose_everything), learn=lambda: claims.outcome(claim))
