"""What the inventory provider knows and has seen, in one SQLite file that outlives its process."""

import json
import sqlite3
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

SCHEMA = """
CREATE TABLE IF NOT EXISTS snapshot (
    user_id INTEGER PRIMARY KEY, version INTEGER NOT NULL, items TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS fault (
    id INTEGER PRIMARY KEY, user_id INTEGER, times INTEGER, delay_seconds REAL NOT NULL,
    status INTEGER, retry_after TEXT, body TEXT, dropped INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS journal (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, arrived_at TEXT NOT NULL, answered_at TEXT,
    user_id INTEGER NOT NULL, operation_id TEXT, run TEXT, answer TEXT
);
"""

FAULT = """
    SELECT * FROM fault WHERE (user_id = ? OR user_id IS NULL) AND (times IS NULL OR times > 0)
    ORDER BY user_id IS NULL, id LIMIT 1
"""


@dataclass(frozen=True)
class Fault:
    """What goes wrong with an answer."""

    user_id: int | None = None  # None: everybody's
    times: int | None = None  # answers it spoils before it clears itself; None: all
    delay_seconds: float = 0.0
    status: int | None = None
    retry_after: str | None = None
    body: str | None = None
    drop: bool = False  # the connection closes without an answer

    @property
    def is_an_answer(self) -> bool:
        return self.drop or self.status is not None or self.body is not None


class Store:
    """Snapshots, faults and the journal."""

    def __init__(self, file: Path) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        self._connection.row_factory = sqlite3.Row
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.executescript(SCHEMA)

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def set_snapshot(self, user_id: int, version: int, items: list[dict[str, Any]]) -> None:
        self._execute("INSERT OR REPLACE INTO snapshot VALUES (?, ?, ?)", user_id, version, json.dumps(items))

    def snapshot(self, user_id: int) -> dict[str, Any] | None:
        rows = self._execute("SELECT * FROM snapshot WHERE user_id = ?", user_id)
        if not rows:
            return None
        return {"user_id": user_id, "version": rows[0]["version"], "items": json.loads(rows[0]["items"])}

    def add_fault(self, fault: Fault) -> None:
        self._execute(
            "INSERT INTO fault (user_id, times, delay_seconds, status, retry_after, body, dropped)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            fault.user_id,
            fault.times,
            fault.delay_seconds,
            fault.status,
            fault.retry_after,
            fault.body,
            fault.drop,
        )

    def take_fault(self, user_id: int) -> Fault | None:
        """Give the fault that spoils this answer, a user's own first, and count it."""
        with self._lock:
            row = self._connection.execute(FAULT, [user_id]).fetchone()
            if row is None:
                return None
            self._connection.execute("UPDATE fault SET times = times - 1 WHERE id = ?", [row["id"]])
        return Fault(
            user_id=row["user_id"],
            times=row["times"],
            delay_seconds=row["delay_seconds"],
            status=row["status"],
            retry_after=row["retry_after"],
            body=row["body"],
            drop=bool(row["dropped"]),
        )

    def clear_faults(self) -> None:
        self._execute("DELETE FROM fault")

    def reset(self) -> None:
        """Forget snapshots and faults; what was seen stays seen."""
        self._execute("DELETE FROM snapshot")
        self.clear_faults()

    def arrived(self, user_id: int, operation_id: str | None, run: str | None) -> int:
        """Write a request into the journal before anything is done about it, and give its sequence number."""
        with self._lock:
            cursor = self._connection.execute(
                "INSERT INTO journal (arrived_at, user_id, operation_id, run) VALUES (?, ?, ?, ?)",
                [_now(), user_id, operation_id, run],
            )
        return int(cursor.lastrowid or 0)

    def answered(self, sequence: int, answer: str) -> None:
        self._execute(
            "UPDATE journal SET answered_at = ?, answer = ? WHERE sequence = ?", _now(), answer, sequence
        )

    def journal(self, user_id: int | None, operation_id: str | None) -> list[dict[str, Any]]:
        rows = self._execute(
            "SELECT * FROM journal WHERE (?1 IS NULL OR user_id = ?1) AND (?2 IS NULL OR operation_id = ?2)"
            " ORDER BY sequence",
            user_id,
            operation_id,
        )
        return [dict(row) for row in rows]

    def _execute(self, statement: str, *values: object) -> list[sqlite3.Row]:
        with self._lock:
            return self._connection.execute(statement, values).fetchall()


def _now() -> str:
    return datetime.now(UTC).isoformat()
