"""What a failure means: a table of categories, attempts and pauses."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import IntegrityError, OperationalError

from operations.cache import Unavailable
from operations.jobs import Backoff, Rejected
from operations.models import TRANSIENT, Category, Operation
from tasks import retry
from tasks.retry import Again, CallFailed, GiveUp, SoftLimitPassed
from tests.factories import make_failure, make_job

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class TestDescribe:
    @pytest.mark.parametrize(
        ("error", "category"),
        [
            (CallFailed("timeout", "no answer"), "timeout"),
            (CallFailed("not_found", "no such user"), "not_found"),
            (SoftLimitPassed(), "timeout"),
            (Rejected("sold_out", "none is left"), "business_rejected"),
            (OperationalError("canceling statement"), "dependency_unavailable"),
            (IntegrityError("twice"), "bug"),
            (ValueError("unforeseen"), "bug"),
            (KeyError("version"), "bug"),
        ],
    )
    def test_gives_each_kind_its_category(self, error, category):
        assert retry.describe(error, make_job()).category == category

    def test_knows_whom_a_call_asked(self):
        job = make_job(dependency="provider")

        assert retry.describe(CallFailed("timeout", "…"), job).dependency == "provider"
        assert retry.describe(CallFailed("timeout", "…", "another"), job).dependency == "another"
        assert retry.describe(ValueError(), job).dependency == ""

    def test_keeps_the_pause_that_was_asked_for(self):
        error = CallFailed("rate_limited", "slower", retry_after_seconds=7)

        assert retry.describe(error, make_job()).retry_after_seconds == 7

    def test_refuses_a_category_that_does_not_exist(self):
        with pytest.raises(ValueError, match="'flaky'"):
            CallFailed("flaky", "…")


class TestDecide:
    def decide(self, attempt=1, pause_seconds=5.0, **failure):
        operation = Operation(attempt=attempt, max_attempts=5)
        return retry.decide(operation, make_failure(**failure), pause_seconds=pause_seconds)

    @pytest.mark.parametrize("category", TRANSIENT)
    def test_tries_again_what_may_pass(self, category):
        assert self.decide(category=category) == Again(5.0)

    @pytest.mark.parametrize(
        "category", ["invalid_input", "not_found", "permission", "business_rejected", "bug"]
    )
    def test_gives_up_what_will_not_pass(self, category):
        assert self.decide(category=category) == GiveUp(category)

    @pytest.mark.parametrize(
        ("category", "reason"),
        [
            ("dependency_unavailable", "attempts_exhausted"),
            ("rate_limited", "attempts_exhausted"),
            ("conflict", "attempts_exhausted"),
            ("timeout", "timeout_exhausted"),
        ],
    )
    def test_gives_up_after_the_last_attempt(self, category, reason):
        assert isinstance(self.decide(attempt=4, category=category), Again)
        assert self.decide(attempt=5, category=category) == GiveUp(reason)

    @pytest.mark.parametrize(
        ("asked_seconds", "pause"),
        [(None, 5.0), (0.0, 5.0), (3.0, 5.0), (60.0, 60.0), (3_600.0, 3_600.0), (86_400.0, 3_600.0)],
    )
    def test_takes_what_the_other_side_asks_for_as_a_floor(self, asked_seconds, pause):
        assert self.decide(retry_after_seconds=asked_seconds) == Again(pause)

    def test_knows_every_category(self):
        permanent = {"invalid_input", "not_found", "permission", "business_rejected", "bug"}
        never_from_a_job = {"outcome_unknown", "poison", "cancelled", "none"}

        assert {*TRANSIENT, *permanent, *never_from_a_job} == set(Category.values)


class TestJittered:
    @pytest.mark.parametrize(("uniform", "seconds"), [(0.0, 15.0), (0.5, 22.5), (1.0, 30.0)])
    def test_stretches_by_up_to_as_much_again(self, uniform, seconds):
        assert retry.jittered(15, uniform=uniform) == seconds

    def test_throws_the_dice_itself(self):
        pauses = {retry.jittered(15) for _ in range(50)}

        assert len(pauses) > 1
        assert all(15 <= pause <= 30 for pause in pauses)


class TestBackoff:
    def test_has_one_attempt_more_than_pauses(self):
        assert Backoff(5, 15, 45, 120).attempts == 5
        assert Backoff().attempts == 1

    @pytest.mark.parametrize(
        ("attempt", "seconds"), [(2, 5), (3, 15), (4, 45), (5, 120), (6, 120), (100, 120)]
    )
    def test_pauses_before_each_further_attempt(self, attempt, seconds):
        assert Backoff(5, 15, 45, 120).before(attempt) == seconds

    def test_may_know_no_pause(self):
        assert Backoff().before(2) == 0.0


class TestRetryAfterSeconds:
    @pytest.mark.parametrize(
        ("header", "seconds"),
        [
            (None, None),
            ("0", 0.0),
            ("120", 120.0),
            (" 120 ", 120.0),
            ("99999999", 3_600.0),
            ("Thu, 01 Jan 2026 12:00:30 GMT", 30.0),
            ("Thu, 01 Jan 2026 11:00:00 GMT", 0.0),
            ("Thursday, 01-Jan-26 12:00:30 GMT", 30.0),
            ("Thu Jan  1 12:00:30 2026", 30.0),
            ("", None),
            ("soon", None),
            ("-5", None),
            ("1.5", None),
            ("Thu, 01 Jan 99999999999999999999 12:00:30 GMT", None),
            ("Thu, 01 Jan 2026 12:00:30 +99999999999999999999", None),
        ],
    )
    def test_reads(self, header, seconds):
        assert retry.retry_after_seconds(header, now=NOON) == seconds

    def test_counts_from_now(self):
        in_an_hour = (datetime.now(UTC) + timedelta(hours=1)).strftime("%a, %d %b %Y %H:%M:%S GMT")

        assert 3_590 <= retry.retry_after_seconds(in_an_hour) <= 3_600


class TestUnavailableCache:
    def test_is_tried_again_after_as_long_as_it_says(self):
        failure = retry.describe(Unavailable("tests:colour", 2.0), make_job())

        assert failure.category in TRANSIENT
        assert (failure.dependency, failure.retry_after_seconds) == ("cache", 2.0)
