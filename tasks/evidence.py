"""Keep what can be learned from a message that no worker may work on, without holding up the event loop.

A thread writes it to the database and opens a connection only for that. While the database is away the thread
holds what it has and up to WAITING more, and tries again; what comes on top, or is still held when the worker
ends, is in the log line and in the counter only. The message is acknowledged in any case: it was a hint, and
if it was about an operation, the relay finds that by its row.
"""

import hashlib
import logging
import queue
import threading
import time
from typing import Any, NamedTuple
from uuid import UUID

from celery.signals import worker_shutdown
from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection
from psycopg.types.json import Jsonb

from operations import metrics, statements, storable
from operations.models import Fault
from tasks.door import HEAD_BYTES, SEALED

log = logging.getLogger(__name__)

WAITING = 1_000  # kept in memory while the database is away, about a megabyte
PAUSE_SECONDS = 1.0  # between two tries
LAST_WORD_SECONDS = 2.0  # of a grace period that has other uses
PURGE_PERIOD_SECONDS = 60.0
KEPT_ROWS = 10_000  # a flood of messages that all differ does not fill the disk

# Headers that hold no values of anybody's payload, as far as senders keep to Celery's protocol. Of all others
# the name and the size are kept.
PLAIN = frozenset(
    (
        *("lang", "task", "id", "root_id", "parent_id", "origin", "retries", "eta", "expires", "timelimit"),
        *("schema_version", "request_id", "correlation_id", "compression", "was_compressed"),
    )
)
MOST_HEADERS, LONGEST_VALUE = 30, 100

# A message whose operation exists is no puzzle: another release wrote it, and the relay sees to it.
STORE = """
    INSERT INTO operations_badmessage AS b
        (queue, fault, task, size, sha256, envelope, head, worker, times)
    SELECT %(queue)s::text, %(fault)s::text, %(task)s::text, %(size)s, %(sha256)s::text, %(envelope)s,
        %(head)s::text, %(worker)s::text, 1
    WHERE NOT EXISTS (
        SELECT FROM operations_operation WHERE id = %(about)s::uuid AND job_type = %(task)s::text)
    ON CONFLICT (sha256, queue, fault)
    DO UPDATE SET times = b.times + 1, last_seen_at = clock_timestamp()
    RETURNING times"""
PURGE = """
    DELETE FROM operations_badmessage WHERE id IN (
        SELECT id FROM operations_badmessage
        WHERE last_seen_at < clock_timestamp() - make_interval(days => %(days)s) OR id <= (
            SELECT id FROM operations_badmessage ORDER BY id DESC OFFSET %(kept)s LIMIT 1)
        LIMIT %(batch)s)
    RETURNING id"""


class Evidence(NamedTuple):
    """One message, cut short."""

    queue: str
    fault: Fault
    task: str
    about: UUID | None  # the operation that it names, if nothing else is wrong with it
    size: int
    sha256: str
    envelope: dict[str, Any]
    head: str
    worker: str


_waiting: queue.Queue[Evidence] = queue.Queue(WAITING)
_thread: threading.Thread | None = None
_purge_at = 0.0  # on this process's monotonic clock


def of(message: Any, fault: Fault, *, queue: str, worker: str) -> Evidence:
    """Take down what a message looks like."""
    headers = message.headers if isinstance(message.headers, dict) else {"": message.headers}
    raw = _bytes(message.body)
    size, sha256 = len(raw), hashlib.sha256(raw).hexdigest()
    if message.content_type == SEALED:
        size, sha256 = int(headers["size"]), str(headers["sha256"])
    return Evidence(
        queue=queue,
        fault=fault,
        task=storable.cleaned(str(headers.get("task", "")))[:100],
        about=_operation_in(message) if fault == Fault.UNKNOWN_TASK else None,
        size=size,
        sha256=sha256,
        envelope=_envelope(message, headers),
        head=raw[:HEAD_BYTES].decode("ascii", "backslashreplace").replace("\0", "\\x00"),
        worker=worker[:150],
    )


def keep(evidence: Evidence) -> None:
    """Count it, log it, and have it stored; never waits."""
    global _thread
    metrics.BAD_MESSAGES.labels(evidence.queue, evidence.fault).inc()
    told = {"queue": evidence.queue, "fault": evidence.fault, "bytes": evidence.size}
    try:
        _waiting.put_nowait(evidence)
        stored = True
    except queue.Full:
        stored = False
    log.warning("message.refused", extra={**told, "sha256": evidence.sha256, "stored": stored})
    if _thread is None or not _thread.is_alive():
        _thread = threading.Thread(target=_store_all, name="evidence", daemon=True)
        _thread.start()


def purge() -> int:
    """Delete evidence that is older than BAD_MESSAGE_DAYS, or more than KEPT_ROWS; a duty of every relay."""
    global _purge_at
    if time.monotonic() < _purge_at:
        return 0
    values = {"days": settings.BAD_MESSAGE_DAYS, "kept": KEPT_ROWS, "batch": settings.RELAY_BATCH}
    gone = len(statements.rows(PURGE, values))
    if gone < settings.RELAY_BATCH:
        _purge_at = time.monotonic() + PURGE_PERIOD_SECONDS
    return gone


@worker_shutdown.connect
def _end(**kwargs: Any) -> None:
    """Let the thread finish, but not hold up the end when the database is away."""
    give_up_at = time.monotonic() + LAST_WORD_SECONDS
    while _waiting.unfinished_tasks and time.monotonic() < give_up_at:
        time.sleep(0.05)


def _store_all() -> None:
    while True:
        evidence = _waiting.get()
        while not _store(evidence):
            time.sleep(PAUSE_SECONDS)
        _waiting.task_done()


def _store(evidence: Evidence) -> bool:
    """Store one. False: the database is away."""
    values = {**evidence._asdict(), "envelope": Jsonb(evidence.envelope)}
    try:
        statements.rows(STORE, values)
    except (DatabaseError, InterfaceError) as error:
        log.warning("message.evidence_waits", extra={"error": type(error).__name__})
        return False
    finally:
        connection.close()  # no child is forked with it
    return True


def _operation_in(message: Any) -> UUID | None:
    try:
        return UUID(message.payload[0][0])
    except ValueError:
        return None


def _envelope(message: Any, headers: dict[Any, Any]) -> dict[str, Any]:
    shown = dict(list(headers.items())[:MOST_HEADERS])
    return {
        "content-type": "" if message.content_type == SEALED else _cut(message.content_type),
        "content-encoding": _cut(message.content_encoding),
        "headers": {_cut(name): _shown(name, value) for name, value in shown.items()},
    }


def _shown(name: object, value: object) -> str:
    return _cut(value) if name in PLAIN else f"({type(value).__name__} of {len(str(value))} characters)"


def _cut(value: object) -> str:
    return str(storable.cleaned(str(value)))[:LONGEST_VALUE]


def _bytes(body: object) -> bytes:
    if isinstance(body, str):
        return body.encode(errors="surrogatepass")
    return bytes(body) if isinstance(body, (bytes, bytearray, memoryview)) else b""
