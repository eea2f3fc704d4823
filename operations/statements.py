"""Run a statement of ours, prepared on the server: planning a move costs more than running it."""

from collections.abc import Mapping
from typing import Any

import psycopg
from django.db import connection


def squeezed(sql: str) -> str:
    """Give a statement in as few characters as may be, if its texts have no spaces.

    psycopg remembers how it read one of up to 4,096. A longer one it reads anew each time, which costs a
    third of what the statement itself does.
    """
    return " ".join(sql.split()).replace(", ", ",").replace(" = ", "=")


def rows(sql: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Give what a statement returns. Joins the open transaction, if there is one; errors are Django's.

    Results come in binary: to read a row's times as text costs more than all else about it. JSON is parsed.

    Values are bound by the server, so a text that stands alone in a SELECT needs its type (`%(name)s::text`).
    """
    connection.ensure_connection()
    with connection.wrap_database_errors, psycopg.Cursor(connection.connection) as cursor:
        cursor.execute(sql, values, prepare=True, binary=True)
        return cursor.fetchall()


def row(sql: str, values: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Give the first row that a statement returns, if any."""
    found = rows(sql, values)
    return found[0] if found else None
