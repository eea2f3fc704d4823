"""Read the query string of a list: filters, limit and cursor, each refused by its name and value."""

import base64
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from operations.models import Status
from operations.reading import NEWEST, Wanted

MOST_ON_A_PAGE = 100
LONGEST_SHOWN = 100  # characters of a refused value


class QueryInvalid(ValueError):
    """A parameter of the query string is unknown, is there twice, or has a value that is not one of its."""


class Moment(serializers.DateTimeField):
    """A moment with its offset: without one it would be any of two dozen."""

    def enforce_timezone(self, value: datetime) -> datetime:
        """Give it in UTC; raise ValidationError if it has no offset."""
        if value.tzinfo is None:
            raise ValidationError("a moment has an offset: Z or, encoded, %2B07:00")
        return super().enforce_timezone(value)


@extend_schema_field({"type": "string", "pattern": "^[A-Za-z0-9_-]{21}[AQgw]$"})  # 16 bytes in Base64
class Cursor(serializers.CharField):
    """The place behind an operation."""


class ListQuery(serializers.Serializer[None]):
    """What may be asked of a list."""

    job_type = serializers.CharField(
        trim_whitespace=False, required=False, max_length=100, help_text="Only of this job."
    )
    status = serializers.ChoiceField(Status.choices, required=False, help_text="Only in this status.")
    created_after = Moment(
        required=False, help_text="Only accepted after this moment (RFC 3339, with its offset)."
    )
    cursor = Cursor(required=False, help_text="Of the page before: its `next`.")
    limit = serializers.IntegerField(
        required=False, default=50, min_value=1, max_value=MOST_ON_A_PAGE, help_text="Operations a page."
    )


def read(query: Mapping[str, list[str]]) -> Wanted:
    """Read the values of a query string, by name.

    Raises:
        QueryInvalid: names the first parameter that is wrong, and its value.
    """
    given = {name: _single(name, values) for name, values in query.items()}
    asked = ListQuery(data=given)
    try:
        asked.is_valid(raise_exception=True)
    except ValidationError as error:
        raise _first(error, given) from error
    cursor = given.get("cursor")
    values = {name: value for name, value in asked.validated_data.items() if name != "cursor"}
    return Wanted(**values, before=NEWEST if cursor is None else _place(cursor))


def cursor_of(last: UUID) -> str:
    """Name the place behind an operation, for the page that follows it."""
    return base64.urlsafe_b64encode(last.bytes).decode().rstrip("=")


def _single(name: str, values: list[str]) -> str:
    if name not in ListQuery().fields:
        raise QueryInvalid(f"a list of operations has no parameter {name[:LONGEST_SHOWN]!r}")
    if len(values) != 1:
        raise QueryInvalid(f"{name} is there {len(values)} times: {', '.join(values)[:LONGEST_SHOWN]!r}")
    return values[0]


def _first(error: ValidationError, given: dict[str, str]) -> QueryInvalid:
    details: Any = error.detail
    name, (why, *_) = next(iter(details.items()))
    return QueryInvalid(f"{name} is not {given[name][:LONGEST_SHOWN]!r}: {why}")


def _place(cursor: str) -> UUID:
    try:
        place = UUID(bytes=base64.urlsafe_b64decode(cursor + "=="))
    except ValueError:
        place = None
    if place is None or cursor_of(place) != cursor:
        raise QueryInvalid(f"cursor is not {cursor[:LONGEST_SHOWN]!r}: take it from the `next` of a page")
    return place
