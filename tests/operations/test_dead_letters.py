"""Exceptions reduced to what can be kept, whatever they are, and named so that the same ones meet."""

import threading

import pytest

from operations import dead_letters
from operations.dead_letters import from_exception, signature
from tests.factories import make_failure, make_operation


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


class HoldsALock(Exception):
    """Cannot be pickled, and so could never travel through Celery."""

    def __init__(self):
        super().__init__("holds a lock")
        self.lock = threading.Lock()


def raised(error):
    try:
        raise error
    except type(error) as caught:
        return caught


class TestFromException:
    def test_keeps_class_text_and_where(self):
        failure = from_exception(raised(ValueError("no sword")), category="bug")

        assert (failure.error_class, failure.message, failure.category) == ("ValueError", "no sword", "bug")
        assert failure.frame == "tests/operations/test_dead_letters.py:raised"
        assert "in raised" in failure.traceback

    def test_keeps_no_live_object(self):
        failure = from_exception(raised(HoldsALock()), category="bug")

        assert failure.message == "holds a lock"
        assert all(isinstance(value, str | bool | None) for value in vars(failure).values())

    def test_survives_an_error_that_cannot_say_what_it_is(self):
        failure = from_exception(raised(Unspeakable()), category="bug")

        assert failure.error_class == "Unspeakable"
        assert failure.message == "(its text could not be had: RuntimeError)"

    @pytest.mark.parametrize(
        ("text", "kept"),
        [
            pytest.param("a\0b", "a\ufffdb", id="NUL"),
            pytest.param("a\ud800b", "a?b", id="half a surrogate pair"),
            pytest.param("x" * 10_000_000, "x" * 1_000, id="ten megabytes"),
            pytest.param("", "", id="nothing"),
        ],
    )
    def test_keeps_of_a_text_what_can_be_stored(self, text, kept):
        assert from_exception(ValueError(text), category="bug").shortened().message == kept

    def test_keeps_the_end_of_a_long_traceback(self):
        def dig(depth):
            return 1 / 0 if depth == 0 else dig(depth - 1) + dig_aside(depth)

        def dig_aside(depth):
            return depth

        with pytest.raises(ZeroDivisionError) as dug:
            dig(900)
        failure = from_exception(dug.value, category="bug").shortened()

        assert len(failure.traceback) <= 20_000
        assert failure.traceback.rstrip().endswith("^") or "1 / 0" in failure.traceback[-200:]

    def test_needs_no_traceback(self):
        failure = from_exception(ValueError("never raised"), category="bug")

        assert (failure.traceback, failure.frame) == ("", "")


class TestSignature:
    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("user 7 has no sword", "user 1234 has no sword"),
            ("no item 'sword' here", "no item 'potion' here"),
            ('no item "sword" here', 'no item "potion" here'),
            (
                "operation 0197a0e5-2c5f-7c4e-9c55-3a1f0f7e8f11 is gone",
                "operation 0197a0e5-ffff-7000-8000-000000000000 is gone",
            ),
            ("digest deadbeefcafe", "digest 0123456789ab"),
            ("no answer in 10.0 s", "no answer in 2.5 s"),
        ],
    )
    def test_is_the_same_for(self, one, other):
        assert signature("a.b", make_failure(message=one)) == signature("a.b", make_failure(message=other))

    @pytest.mark.parametrize(
        "changes",
        [{"message": "refused"}, {"error_class": "OSError"}, {"frame": "x.py:f"}, {"dependency": "provider"}],
    )
    def test_differs_by(self, changes):
        assert signature("a.b", make_failure()) != signature("a.b", make_failure(**changes))

    def test_differs_by_job(self):
        assert signature("a.b", make_failure()) != signature("a.c", make_failure())

    def test_is_short_enough_to_be_said(self):
        assert len(signature("a.b", make_failure())) == 16


@pytest.mark.django_db
class TestBury:
    def test_keeps_whatever_an_exception_may_say(self):
        operation = make_operation(status="failed_permanent", idempotency_key="k-1")
        failure = from_exception(raised(ValueError("\0\ud800" + "x" * 100_000)), category="bug").shortened()

        buried = dead_letters.bury(operation, failure)

        buried.refresh_from_db()
        assert buried.error_message.startswith("\ufffd?xxx")
        assert (buried.operation, buried.idempotency_key) == (operation, "k-1")

    @pytest.mark.parametrize(("category", "expected"), [("business_rejected", True), ("bug", False)])
    def test_marks_what_was_to_be_expected(self, category, expected):
        operation = make_operation(status="failed_permanent", reason=category)

        assert dead_letters.bury(operation, make_failure(category=category)).expected is expected
