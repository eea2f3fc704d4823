"""The big columns of one operation as text to read: laid out and cut by the database, never loaded whole."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.db.models import F, Func, JSONField, TextField, Value
from django.db.models.functions import Cast, Left, Length

from operations import secrecy
from operations.models import Operation, OperationData

ALL = "all of it"
PATH = ArrayField(TextField())
SHOWN = 20_000  # characters of each column: a page stays a page, whatever a client or a provider sent


@dataclass(frozen=True)
class Column:
    """One column: its text, and how long it really is."""

    name: str
    text: str
    characters: int

    @property
    def cut(self) -> bool:
        return self.characters > SHOWN


def columns(operation: Operation, *, hidden: Sequence[str] = ()) -> list[Column]:
    """Give payload, result and error, without those that are null; `hidden` members of the payload masked."""
    wanted: dict[str, Any] = {}
    for name in ("payload", "result", "error"):
        shown = _masked(F(name), hidden) if name == "payload" else F(name)
        pretty = Func(shown, function="jsonb_pretty", output_field=TextField())
        wanted |= {f"{name}_text": Left(pretty, SHOWN), f"{name}_length": Length(pretty)}
    row: Any = OperationData.objects.filter(operation=operation).values(**wanted).first()
    return [
        Column(name, row[f"{name}_text"], row[f"{name}_length"])
        for name in ("payload", "result", "error")
        if row is not None and row[f"{name}_text"] is not None
    ]


def revealed(operation: Operation) -> Column:
    """Give the payload as it was sent, what is sealed opened."""
    stored = OperationData.objects.values_list("payload", flat=True).get(operation=operation)
    try:
        text = json.dumps(secrecy.opened(stored), indent=4, sort_keys=True, ensure_ascii=False)
    except secrecy.Unreadable as unreadable:
        text = str(unreadable)
    return Column("payload", text[:SHOWN], len(text))


def _masked(payload: Any, hidden: Sequence[str]) -> Any:
    """Put the mask in the place of members, where there are any of that name, or of all of them."""
    if ALL in hidden:
        return Cast(Value(json.dumps(secrecy.MASK)), JSONField())
    for name in hidden:
        path, mask = Value(f"{{{name}}}"), Value(json.dumps(secrecy.MASK))
        payload = Func(payload, Cast(path, PATH), Cast(mask, JSONField()), Value(False), function="jsonb_set")
    return payload
