"""What PostgreSQL can store as JSON: the same tree is refused from a client and cleaned for a worker."""

import json
from decimal import Decimal

import pytest
from django.db import connection
from psycopg.types.json import Jsonb

from operations import storable

LONE = "\ud800"
HARMFUL = ["a\0b", LONE, ["a\0"], {"a\0": 1}, {"a": [{"b": LONE}]}, {LONE: 1}]
HARMLESS = ["", "a", "😀", "\u2028", "\ufffd", 0, 1.5, True, None, [], {}, {"a": [1, "b", None, {"c": {}}]}]


def stored(value):
    """Give what the database makes of a value."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s::jsonb::text", [Jsonb(value)])
        return json.loads(cursor.fetchone()[0])


class TestRefuse:
    @pytest.mark.parametrize("value", HARMFUL)
    def test_refuses_what_can_not_be_stored(self, value):
        with pytest.raises(ValueError, match=r"NUL|surrogates not allowed"):
            storable.refuse(value)

    @pytest.mark.parametrize("value", HARMLESS)
    def test_lets_pass_what_can(self, value):
        assert storable.refuse(value) >= 1


class TestCleaned:
    @pytest.mark.parametrize("value", HARMLESS)
    def test_leaves_alone_what_can_be_stored(self, value):
        cleaned = storable.cleaned(value)

        assert (cleaned, type(cleaned)) == (value, type(value))

    @pytest.mark.parametrize(
        ("value", "cleaned"),
        [
            ("a\0b", "a\ufffdb"),
            (LONE, "?"),
            ({"a\0": {LONE: ["\0"]}}, {"a\ufffd": {"?": ["\ufffd"]}}),
            (float("nan"), None),
            (float("inf"), None),
            ([float("-inf"), 1.5], [None, 1.5]),
            (Decimal("1.10"), "1.10"),
            (Decimal("NaN"), "NaN"),
            ((1, (2, "\0")), [1, [2, "\ufffd"]]),
            ({1: "one", None: "none"}, {"1": "one", "None": "none"}),
        ],
    )
    def test_replaces_what_can_not(self, value, cleaned):
        assert storable.cleaned(value) == cleaned

    @pytest.mark.django_db
    @pytest.mark.parametrize("value", [*HARMFUL, *HARMLESS, float("nan"), (1, 2), Decimal("1.10"), 10**400])
    def test_gives_what_is_stored_as_it_is(self, value):
        cleaned = storable.cleaned(value)

        assert stored(cleaned) == cleaned
        assert storable.refuse(cleaned) >= 1

    def test_is_the_same_the_second_time(self):
        once = storable.cleaned({"a\0": [float("nan"), Decimal("1.0"), (LONE,)]})

        assert storable.cleaned(once) == once
