"""What PostgreSQL can store as JSON text: the API refuses the rest, a worker cleans it."""

import math
from decimal import Decimal
from typing import Any


def refuse(value: Any) -> int:
    """Refuse a parsed tree that could not be stored. Give the number of values in it, names included.

    Raises:
        ValueError: a string in it holds NUL or half of a surrogate pair.
    """
    if isinstance(value, str):
        value.encode()
        if "\0" in value:
            raise ValueError("a string holds NUL")
    return 1 + sum(refuse(inner) for inner in _inside(value))


def cleaned(value: Any) -> Any:
    """Give a tree that can be stored: what can't be is replaced by the replacement character, or by null."""
    if isinstance(value, str):
        return value.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        return {cleaned(str(member)): cleaned(inner) for member, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [cleaned(inner) for inner in value]
    return value


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    return value if isinstance(value, list) else []
