"""Say that this process lives: what it is, what its code knows, and when it was last seen."""

import os
import socket
import threading
from typing import Any

from celery.signals import worker_ready, worker_shutdown
from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection
from psycopg.types.json import Jsonb

from operations import jobs

REPORT = """
    INSERT INTO operations_workernode (name, kind, release, job_types, queues, slots)
    VALUES (%(name)s, %(kind)s, %(release)s, %(job_types)s, %(queues)s, %(slots)s)
    ON CONFLICT (name) DO UPDATE SET last_seen_at = clock_timestamp(), release = EXCLUDED.release,
        job_types = EXCLUDED.job_types, queues = EXCLUDED.queues, slots = EXCLUDED.slots,
        started_at = CASE WHEN %(first)s THEN clock_timestamp() ELSE operations_workernode.started_at END"""
FORGET = """
    DELETE FROM operations_workernode
    WHERE name = %(name)s OR last_seen_at < clock_timestamp() - interval '1 day'"""

LAST_WORD_SECONDS = 2.0  # of a grace period that has other uses

_stop = threading.Event()
_has_spoken: set[str] = set()  # kinds; in a container the next process has the name of the last
_reporter: threading.Thread | None = None


def report(kind: str, *, queues: list[str] | None = None, slots: int = 0) -> None:
    """Say that this process lives, what its release is, and which jobs are in its code."""
    values = {
        "name": _name(kind),
        "kind": kind,
        "release": settings.RELEASE,
        "job_types": Jsonb(sorted(job.name for job in jobs.every())),
        "queues": Jsonb(queues or []),
        "slots": slots,
        "first": kind not in _has_spoken,
    }
    with connection.cursor() as cursor:
        cursor.execute(REPORT, values)
    _has_spoken.add(kind)


def leave(kind: str) -> None:
    """Say that this process ends, and forget those that could not; its last word, if anybody hears it."""
    _once(_forget, kind)


def _forget(kind: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(FORGET, {"name": _name(kind)})


@worker_ready.connect
def _begin(sender: Any, **kwargs: Any) -> None:
    """Report from a thread: the worker's event loop must never wait for a database."""
    global _reporter
    values = {"queues": sorted(_served()), "slots": sender.controller.concurrency or 1}
    _reporter = threading.Thread(target=_keep_reporting, kwargs=values, name="node", daemon=True)
    _reporter.start()


def _served() -> list[str]:
    return [queue.removeprefix(settings.QUEUE_PREFIX) for queue in settings.CELERY_TASK_QUEUES]


@worker_shutdown.connect
def _end(**kwargs: Any) -> None:
    """Let the thread say its last word, but not hold up the end when the database is away."""
    _stop.set()
    if _reporter is not None:
        _reporter.join(LAST_WORD_SECONDS)


def _keep_reporting(**values: Any) -> None:
    """Open a connection for each report and close it, so that no child is forked with one."""
    while not _stop.is_set():
        _once(report, "worker", **values)
        _stop.wait(settings.NODE_PERIOD_SECONDS)
    leave("worker")


def _once(say: Any, kind: str, **values: Any) -> None:
    try:
        say(kind, **values)
    except (DatabaseError, InterfaceError):
        return  # the database is away: the age of the last report tells
    finally:
        connection.close()


def _name(kind: str) -> str:
    return f"{kind}@{socket.gethostname()}/{os.getpid()}"
