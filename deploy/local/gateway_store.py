"""What the payment gateway knows, in one SQLite file that outlives its process: each thing a row, as JSON."""

import json
import random
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = """
CREATE TABLE IF NOT EXISTS thing (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, created INTEGER NOT NULL, sequence INTEGER NOT NULL,
    data TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS idempotency (
    key TEXT PRIMARY KEY, asked TEXT NOT NULL, status INTEGER, body TEXT
);
CREATE TABLE IF NOT EXISTS journal (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, what TEXT NOT NULL, intent TEXT NOT NULL,
    amount INTEGER NOT NULL, currency TEXT NOT NULL, operation_id TEXT, key TEXT
);
CREATE TABLE IF NOT EXISTS request (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, method TEXT NOT NULL, path TEXT NOT NULL, key TEXT,
    answer TEXT
);
CREATE TABLE IF NOT EXISTS event (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, data TEXT NOT NULL,
    delivered INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS fault (id INTEGER PRIMARY KEY, times INTEGER, data TEXT NOT NULL);
"""


@dataclass(frozen=True)
class Fault:
    """What goes wrong with a request, and at which stage.

    `limiter`: answered before anything is looked at, and nothing is saved under the key. `engine`: instead of
    being done, and the answer is saved under the key. `reply`: it is done and saved, and the reply is spoilt.
    """

    on: str = "*"  # create, confirm, capture, cancel, retrieve, list, refund; or all of them
    stage: str = "reply"
    times: int | None = 1  # requests it spoils before it clears itself; None: all
    share: float = 1.0  # of the requests
    status: int | None = None
    error: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    delay_seconds: float = 0.0
    drop: bool = False  # the connection closes without an answer
    body: str | None = None  # instead of the true one
    change: dict[str, Any] = field(default_factory=dict)  # members of the true one that are other


class Store:
    """Things, keys, events, faults and the journal; everything under one lock."""

    def __init__(self, file: Path) -> None:
        self.lock = threading.RLock()
        self._connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        self._connection.row_factory = sqlite3.Row
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.executescript(SCHEMA)
        self._execute("DELETE FROM idempotency WHERE status IS NULL")  # whoever was at it is dead
        self._chance = random.Random(7)  # noqa: S311 (which requests a fault hits)

    def close(self) -> None:
        with self.lock:
            self._connection.close()

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Do what the block does wholly or not at all: a kill in the middle leaves nothing half done."""
        with self.lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def put(self, kind: str, thing: dict[str, Any]) -> None:
        self._execute(
            "INSERT INTO thing VALUES (?1, ?2, ?3, (SELECT count(*) FROM thing), ?4)"
            " ON CONFLICT (id) DO UPDATE SET data = ?4",
            thing["id"],
            kind,
            thing["created"],
            json.dumps(thing),
        )

    def get(self, kind: str, id: str) -> dict[str, Any] | None:
        rows = self._execute("SELECT data FROM thing WHERE kind = ? AND id = ?", kind, id)
        return dict(json.loads(rows[0]["data"])) if rows else None

    def newest(self, kind: str, *, since: int, until: int) -> list[dict[str, Any]]:
        """Give all of a kind that were made in these seconds, the newest first."""
        rows = self._execute(
            "SELECT data FROM thing WHERE kind = ? AND created BETWEEN ? AND ? ORDER BY sequence DESC",
            kind,
            since,
            until,
        )
        return [dict(json.loads(row["data"])) for row in rows]

    def begin(self, key: str, asked: str) -> dict[str, Any] | None:
        """Reserve a key for a request; or give what it was used for: {asked, status, body}."""
        with self.lock:
            rows = self._execute("SELECT * FROM idempotency WHERE key = ?", key)
            if rows:
                return dict(rows[0])
            self._execute("INSERT INTO idempotency (key, asked) VALUES (?, ?)", key, asked)
        return None

    def save(self, key: str | None, status: int, body: str) -> None:
        self._execute("UPDATE idempotency SET status = ?, body = ? WHERE key = ?", status, body, key)

    def forget(self, key: str | None) -> None:
        self._execute("DELETE FROM idempotency WHERE key = ?", key)

    def forget_keys(self) -> None:
        """Do what the gateway does after a day."""
        self._execute("DELETE FROM idempotency")

    def note(self, what: str, intent: dict[str, Any], amount: int, key: str | None) -> None:
        """Write into the journal that money has moved, or is held."""
        operation_id = intent["metadata"].get("operation_id")
        self._execute(
            "INSERT INTO journal (what, intent, amount, currency, operation_id, key)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            what,
            intent["id"],
            amount,
            intent["currency"],
            operation_id,
            key,
        )

    def journal(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self._execute("SELECT * FROM journal ORDER BY sequence")]

    def arrived(self, method: str, path: str, key: str | None) -> int:
        with self.lock:
            cursor = self._connection.execute(
                "INSERT INTO request (method, path, key) VALUES (?, ?, ?)", [method, path, key]
            )
        return int(cursor.lastrowid or 0)

    def answered(self, sequence: int, answer: str) -> None:
        self._execute("UPDATE request SET answer = ? WHERE sequence = ?", answer, sequence)

    def requests(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self._execute("SELECT * FROM request ORDER BY sequence")]

    def tell(self, kind: str, thing: dict[str, Any]) -> None:
        """Write an event, to be delivered."""
        event = {
            "id": f"evt_{uuid.uuid4().hex[:24]}",
            "object": "event",
            "api_version": "2026-10-28.endive",
            "created": int(time.time()),
            "type": kind,
            "data": {"object": thing},
        }
        self._execute(
            "INSERT INTO event (id, data, delivered) VALUES (?, ?, 0)", event["id"], json.dumps(event)
        )

    def events(self, *, undelivered: bool = False) -> list[dict[str, Any]]:
        rows = self._execute(
            "SELECT data FROM event WHERE NOT (delivered AND ?) ORDER BY sequence", undelivered
        )
        return [dict(json.loads(row["data"])) for row in rows]

    def delivered(self, id: str) -> None:
        self._execute("UPDATE event SET delivered = 1 WHERE id = ?", id)

    def add_fault(self, fault: Fault) -> None:
        self._execute("INSERT INTO fault (times, data) VALUES (?, ?)", fault.times, json.dumps(asdict(fault)))

    def clear_faults(self) -> None:
        self._execute("DELETE FROM fault")

    def take_fault(self, on: str, stage: str) -> Fault | None:
        """Give the fault that spoils this request at this stage, and count it."""
        with self.lock:
            for row in self._execute("SELECT * FROM fault WHERE times IS NULL OR times > 0 ORDER BY id"):
                fault = Fault(**json.loads(row["data"]))
                if fault.stage != stage or fault.on not in ("*", on) or self._chance.random() >= fault.share:
                    continue
                self._execute("UPDATE fault SET times = times - 1 WHERE id = ?", row["id"])
                return fault
        return None

    def _execute(self, statement: str, *values: object) -> list[sqlite3.Row]:
        with self.lock:
            return self._connection.execute(statement, values).fetchall()
