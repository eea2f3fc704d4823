"""Build the one statement that is a move: lock the row if as expected, change it, write history and debts."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, LiteralString
from uuid import UUID

from django.conf import settings
from django.db.models.base import ModelState
from psycopg.types.json import Jsonb

from operations import statements
from operations.models import Operation, Status

COLUMNS = [str(field.column) for field in Operation._meta.concrete_fields]
SELECTED = ", ".join(COLUMNS)
SELECTED_OF_O = ", ".join(f"o.{column}" for column in COLUMNS)  # where other tables have columns of that name

# First the row, by its key, as it is once whoever holds it has let go; then whether it is as expected. In one
# condition, a prepared plan might look for it among all that wait.
LOCKED = "WITH locked AS (SELECT * FROM operations_operation WHERE id = %(id)s FOR NO KEY UPDATE)"

# What begins every insertion of a move into the history.
HISTORY = """INSERT INTO operations_transition
        (operation_id, from_status, to_status, reason, run, attempt, error, actor, at)"""

# The resource's own proof, taken last before COMMIT: nobody has claimed the resource since, and what this
# operation brings is newer than what is there (or is what this very operation brought before).
FENCED = """, fenced AS (
    UPDATE operations_resourcefence AS f
    SET applied_version = COALESCE(%(version)s, f.applied_version),
        applied_by = CASE WHEN %(version)s::bigint IS NULL THEN f.applied_by ELSE %(id)s END,
        applied_hash = CASE WHEN %(version)s::bigint IS NULL THEN f.applied_hash ELSE %(digest)s END
    FROM seen
    WHERE f.resource = %(resource)s AND f.fence = %(fence)s
        AND (%(version)s::bigint IS NULL OR f.applied_version IS NULL
             OR f.applied_version < %(version)s::bigint OR f.applied_by = %(id)s)
    RETURNING f.fence
)"""


class IllegalMove(ValueError):
    """Code asked for a move that the lifecycle does not have."""


@dataclass(frozen=True, kw_only=True)
class Arrow:
    """A move from any of `sources` to `to`, for rows that also meet `where` (SQL over its columns)."""

    sources: Sequence[str]
    to: str
    change: LiteralString  # SET, beside status, reason and version
    where: LiteralString = "true"
    fenced: bool = False
    owes: LiteralString = "resource <> ''"  # when the resource's lock and waiters must be seen to afterwards

    def __post_init__(self) -> None:
        """Refuse an arrow that is not in Operation.MOVES."""
        for source in self.sources:
            if not _reasons(source, self.to):
                raise IllegalMove(f"no move leads from {source!r} to {self.to!r}")

    def __call__(
        self, id: UUID, *, actor: str, reason: str = "", error: str = "", **values: Any
    ) -> Operation | None:
        """Move the operation; None if its row is not as expected.

        Raises:
            IllegalMove: `reason` is not one of this move's.
        """
        if not all(reason in _reasons(source, self.to) for source in self.sources):
            raise IllegalMove(f"{reason!r} is no reason to move from {tuple(self.sources)} to {self.to!r}")
        values = {
            "result": None,
            "problem": None,
            "invalidate": (),
            "grace": settings.RELAY_PERIOD_SECONDS / 2,
            **values,
        }
        values["invalidate"] = Jsonb(list(values["invalidate"]))
        return one(self.sql, id=id, reason=reason, actor=actor[:150], error=error[:500], **values)

    @cached_property
    def sql(self) -> str:
        sources = ", ".join(f"'{source}'" for source in self.sources)
        return f"""
            {LOCKED}, seen AS (
                SELECT id, status FROM locked AS o WHERE status IN ({sources}) AND {self.where}
            ){FENCED if self.fenced else ""}, moved AS (
                UPDATE operations_operation AS o
                SET status = '{self.to}', reason = %(reason)s, version = o.version + 1, {self.change}
                FROM seen{", fenced" if self.fenced else ""} WHERE o.id = seen.id
                RETURNING o.*, seen.status AS from_status
            ), history AS (
                {HISTORY}
                SELECT id, from_status, status, reason, runs, attempt, %(error)s, %(actor)s, clock_timestamp()
                FROM moved
            ), stored AS (
                UPDATE operations_operationdata AS d
                SET result = COALESCE(%(result)s, d.result), error = COALESCE(%(problem)s, d.error)
                FROM moved
                WHERE d.operation_id = moved.id
                    AND (%(result)s::jsonb IS NOT NULL OR %(problem)s::jsonb IS NOT NULL)
            ), owed AS (
                INSERT INTO operations_aftercommit
                    (operation_id, invalidate, resource, claim_token, run_at, tries)
                SELECT id, %(invalidate)s, resource, claim_token,
                    clock_timestamp() + make_interval(secs => %(grace)s), 0
                FROM moved WHERE {self.owes} OR %(invalidate)s::jsonb <> '[]'
                RETURNING id
            )
            SELECT {SELECTED}, (SELECT id FROM owed) FROM moved"""  # noqa: S608 (only constants are put in)


def one(sql: str, **parameters: Any) -> Operation | None:
    """Run a statement that selects an operation's columns and, last, the id of what is owed after commit."""
    found = statements.row(sql, parameters)
    return None if found is None else from_row(found)


def from_row(row: Sequence[Any]) -> Operation:
    """Make the operation of a row that begins with COLUMNS; the next value is `after_commit_id`.

    As Model.from_db does, without the signals and the search for defaults: each run makes three.
    """
    operation = Operation.__new__(Operation)
    operation._state = ModelState()
    operation._state.adding, operation._state.db = False, "default"
    operation.__dict__.update(zip(COLUMNS, row, strict=False))
    operation.after_commit_id = row[len(COLUMNS)] if len(row) > len(COLUMNS) else None
    return operation


def _reasons(source: str, to: str) -> set[str]:
    return {
        reason
        for move in Operation.MOVES
        if (move.source, move.to) == (source, to)
        for reason in move.reasons
    }


PROCESSING = (Status.PROCESSING,)
