"""What the database says. Reads only."""

from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from psycopg.rows import class_row, dict_row, scalar_row

FINAL = ("succeeded", "failed_permanent", "ignored")


class Move(NamedTuple):
    """One line of an operation's history."""

    source: str
    to: str
    reason: str
    run: int
    attempt: int
    actor: str
    at: datetime

    def __str__(self) -> str:
        return f"{self.to} ({self.reason})" if self.reason not in {"", "accepted"} else self.to


class Truth:
    """A connection of its own, beside the product."""

    def __init__(self, database_url: str) -> None:
        self._connection = psycopg.connect(database_url, autocommit=True)

    def operation(self, id: str) -> dict[str, Any]:
        """Give an operation's row; empty if there is none."""
        rows = self.rows("SELECT * FROM operations_operation WHERE id = %s", UUID(id))
        return rows[0] if rows else {}

    def operations_of(self, user_id: int, key: str) -> list[str]:
        """Give the ids of the operations that a user's key made: one, if the promise is kept."""
        statement = "SELECT id FROM operations_operation WHERE owner_id = %s AND idempotency_key = %s"
        return [str(row["id"]) for row in self.rows(statement, user_id, key)]

    def history(self, id: str) -> list[Move]:
        statement = """
            SELECT from_status AS source, to_status AS to, reason, run, attempt, actor, at
            FROM operations_transition WHERE operation_id = %s ORDER BY id"""
        with self._connection.cursor(row_factory=class_row(Move)) as cursor:
            return cursor.execute(statement, [UUID(id)]).fetchall()

    def items(self, user_id: int) -> dict[str, int]:
        """Give what our tables say a user owns."""
        rows = self.rows("SELECT sku, quantity FROM inventory_inventoryitem WHERE user_id = %s", user_id)
        return {row["sku"]: row["quantity"] for row in rows}

    def versions(self, user_id: int) -> set[int]:
        """Give the versions that a user's rows are of: one, when they are one snapshot."""
        statement = "SELECT DISTINCT version FROM inventory_inventoryitem WHERE user_id = %s"
        return {row["version"] for row in self.rows(statement, user_id)}

    def count(self, table: str, where: str = "true") -> int:
        statement = f"SELECT count(*) FROM {table} WHERE {where}"  # noqa: S608 (only constants are put in)
        with self._connection.cursor(row_factory=scalar_row) as cursor:
            return int(cursor.execute(statement.encode()).fetchone() or 0)

    def rows(self, statement: str, *values: object) -> list[dict[str, Any]]:
        with self._connection.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(statement.encode(), values).fetchall()

    def close(self) -> None:
        self._connection.close()


def told(history: list[Move]) -> str:
    """Tell a history in one line."""
    return " → ".join(map(str, history))
