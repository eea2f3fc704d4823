"""Read request bodies: JSON as RFC 8259 has it, and nothing that PostgreSQL could not store."""

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import IO, Any

from django.conf import settings
from rest_framework.exceptions import APIException, ParseError
from rest_framework.parsers import BaseParser

from operations import storable

# Own limits, so that no interpreter's decide. A request that needs more is another kind of request.
MOST_NESTED = 32  # arrays and objects inside each other
MOST_VALUES = 5_000  # of all kinds, names of members counted
LONGEST_NUMBER = 40  # characters: more than any amount, id or time has
# A string, closed or not, so that none is looked through twice; or what opens or closes a level.
NESTING = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


class BodyTooLarge(APIException):
    """The body is larger than DATA_UPLOAD_MAX_MEMORY_SIZE."""

    status_code = 413


class LengthMissing(APIException):
    """The body comes without its size."""

    status_code = 411


class StrictJSONParser(BaseParser):
    """No duplicate members, no NaN, no NUL, nothing without end; fractions keep their digits, as Decimal."""

    media_type = "application/json"

    def parse(
        self, stream: IO[bytes], media_type: str | None = None, context: Mapping[str, Any] | None = None
    ) -> Any:
        """Read the body.

        Raises:
            BodyTooLarge: it has more than DATA_UPLOAD_MAX_MEMORY_SIZE bytes.
            ParseError: it is not strict JSON in UTF-8.
        """
        body = stream.read(settings.DATA_UPLOAD_MAX_MEMORY_SIZE + 1)
        if len(body) > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
            raise BodyTooLarge(f"a body has at most {settings.DATA_UPLOAD_MAX_MEMORY_SIZE} bytes")
        try:
            return _parsed(body.decode())
        except ValueError as error:
            raise ParseError(f"the body is not valid JSON: {error}") from error


def _parsed(text: str) -> Any:
    _refuse_nesting(text)
    parsed = json.loads(
        text,
        parse_int=lambda digits: int(_short(digits)),
        parse_float=lambda digits: Decimal(_short(digits)),
        parse_constant=_no_constant,
        object_pairs_hook=_no_duplicates,
    )
    if (values := storable.refuse(parsed)) > MOST_VALUES:
        raise ValueError(f"it holds {values} values, at most {MOST_VALUES} are read")
    return parsed


def _refuse_nesting(text: str) -> None:
    """Refuse what the parser itself might not survive; what is no JSON is left to it."""
    if text.count("[") + text.count("{") <= MOST_NESTED:
        return
    depth = 0
    for found in NESTING.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
        if depth > MOST_NESTED:
            raise ValueError(f"it is nested deeper than {MOST_NESTED}")


def _short(digits: str) -> str:
    if len(digits) > LONGEST_NUMBER:
        raise ValueError(f"a number has more than {LONGEST_NUMBER} characters")
    return digits


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member occurs twice")
    return members
