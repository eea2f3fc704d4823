"""Read operations for the user who owns them: one, a glimpse of one, or a page of many. Never another's."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from operations import holds, jobs, lifecycle, order, statements
from operations.arrows import COLUMNS, SELECTED_OF_O, from_row
from operations.holds import HOLD_ID
from operations.lifecycle import AS_IT_STANDS, Found
from operations.models import FINAL, Operation
from operations.order import BLOCKED_BY

NEWEST = UUID(int=(1 << 128) - 1)  # newer than every id
OLDEST = UUID(int=0)
# A page with filters looks at so many rows at most, and the next goes on there: a few milliseconds.
MOST_EXAMINED = 5_000
# The first 48 bits of an id are milliseconds, by the clock of whoever made it. None of ours is so wrong.
CLOCKS_DIFFER_BY = timedelta(days=1)


class Glimpse(NamedTuple):
    """What tells whether anything can be seen to have changed, without reading the rest."""

    version: int
    status: str
    created_at: datetime
    hold_id: int | None
    blocked_by: UUID | None

    @property
    def is_final(self) -> bool:
        return self.status in FINAL

    @property
    def etag(self) -> str:
        """A hold, or another head of the line, changes what is said of an operation, not its row."""
        held = "" if self.hold_id is None else f"-{self.hold_id}"
        blocked = "" if self.blocked_by is None else f"-{self.blocked_by.hex}"
        return f'W/"{self.version}{held}{blocked}"'


def glimpse_of(operation: Operation) -> Glimpse:
    """Give the glimpse of an operation that `stands` has read."""
    hold_id, head = operation.hold_id, operation.blocked_by_id
    return Glimpse(operation.version, operation.status, operation.created_at, hold_id, head)


MINE = "FROM operations_operation AS o {join} WHERE o.id = %(id)s AND o.owner_id = %(owner_id)s"
GLIMPSE = f"SELECT o.version, o.status, o.created_at, {HOLD_ID}, {BLOCKED_BY} {MINE.format(join='')}"


def glimpse(id: UUID, *, owner_id: int) -> Glimpse | None:
    """Look at an operation of this owner; None: there is none."""
    row = statements.row(GLIMPSE, {"id": id, "owner_id": owner_id, "skip": jobs.skipping_the_dead()})
    return None if row is None else Glimpse(*row)


WITH_DATA = "JOIN operations_operationdata AS d ON d.operation_id = o.id"
STANDS = f"SELECT {AS_IT_STANDS} {MINE.format(join=WITH_DATA)}"


def stands(id: UUID, *, owner_id: int) -> Found | None:
    """Give an operation of this owner with its result and error, as it stands now; None: there is none.

    One statement, the one that polls live on; one more if it waits in a line.
    """
    row = statements.row(STANDS, {"id": id, "owner_id": owner_id})
    if row is None:
        return None
    found = lifecycle.found(row)
    found.operation.blocked_by_id = order.blocked_by(found.operation)
    return found


class Wanted(NamedTuple):
    """Which of an owner's operations a page is to show. Ids lie between `before` and `created_after`."""

    job_type: str | None = None
    status: str | None = None
    created_after: datetime | None = None
    before: UUID = NEWEST
    limit: int = 50

    @property
    def has_filters(self) -> bool:
        return (self.job_type, self.status, self.created_after) != (None, None, None)


class Page(NamedTuple):
    """Operations, the newest first, without their data. `last`: behind it begins the next page, if any."""

    operations: list[Operation]
    last: UUID | None


_LISTED = f"{SELECTED_OF_O}, NULL, {BLOCKED_BY}"
_OWNED = "owner_id = %(owner_id)s AND id < %(before)s"
PAGE = f"""
    SELECT {_LISTED}, NULL::uuid FROM operations_operation AS o
    WHERE {_OWNED} ORDER BY id DESC LIMIT %(most)s"""  # noqa: S608 (only constants are put in)
# `edge` is the last row that is looked at. It is there even if no row is, to say where to go on.
FILTERED_PAGE = f"""
    SELECT {_LISTED}, edge.id
    FROM (SELECT (
        SELECT id FROM operations_operation WHERE {_OWNED} AND id >= %(floor)s
        ORDER BY id DESC OFFSET %(examined)s - 1 LIMIT 1) AS id) AS edge
    LEFT JOIN LATERAL (
        SELECT * FROM operations_operation
        WHERE {_OWNED} AND id >= COALESCE(edge.id, %(floor)s)
            AND (%(job_type)s::text IS NULL OR job_type = %(job_type)s)
            AND (%(status)s::text IS NULL OR status = %(status)s)
            AND (%(created_after)s::timestamptz IS NULL OR created_at > %(created_after)s)
        ORDER BY id DESC LIMIT %(most)s) AS o ON true"""  # noqa: S608


def page(wanted: Wanted, *, owner_id: int) -> Page:
    """Give a page of an owner's operations, and where the next begins.

    With filters it may be short, or empty, and still not be the last: no page looks at more than
    MOST_EXAMINED rows.
    """
    values: dict[str, Any] = {
        **wanted._asdict(),
        "owner_id": owner_id,
        "most": wanted.limit + 1,
        "skip": jobs.skipping_the_dead(),
        "examined": MOST_EXAMINED,
        "floor": OLDEST if wanted.created_after is None else _first_id(wanted.created_after),
    }
    rows = statements.rows(FILTERED_PAGE if wanted.has_filters else PAGE, values)
    found = [_listed(row) for row in rows if row[0] is not None]
    shown = found[: wanted.limit]
    holds.look_over(shown)
    if len(found) > wanted.limit:
        return Page(shown, shown[-1].id)
    return Page(shown, rows[0][-1] if rows else None)


def _listed(row: Sequence[Any]) -> Operation:
    operation = from_row(row)
    operation.blocked_by_id = row[len(COLUMNS) + 1]
    return operation


def _first_id(created_after: datetime) -> UUID:
    """Give an id that is older than any of an operation created after that moment (RFC 9562, section 5.7)."""
    since_1970 = created_after - datetime(1970, 1, 1, tzinfo=UTC) - CLOCKS_DIFFER_BY
    milliseconds = since_1970 // timedelta(milliseconds=1)
    return UUID(int=min(max(milliseconds, 0), (1 << 48) - 1) << 80)
