"""The first page: what waits, what runs, what failed, who works. Every number is capped, none is cached."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connection
from django.http import HttpRequest
from django.utils import timezone

from config.admin import COUNT_CAP, CappedCount
from operations import jobs
from operations.admin.outlook import alive
from operations.models import AuditEntry, DeadLetter, WorkerNode

LATEST = 8  # failures and acts that are shown
RECENT_MINUTES = 15

# Each reads a partial index and no more than the cap.
OPEN = """
    SELECT job_type, status, count(*), count(*) FILTER (WHERE run_at <= now()) FROM (
        SELECT job_type, status, run_at FROM operations_operation
        WHERE status IN ('queued', 'retry_scheduled') LIMIT %(cap)s) AS waiting GROUP BY 1, 2
    UNION ALL
    SELECT job_type, 'processing', count(*), 0 FROM (
        SELECT job_type FROM operations_operation WHERE status = 'processing' LIMIT %(cap)s
    ) AS busy GROUP BY 1"""
OLDEST = """
    SELECT name, (SELECT min(run_at) FROM operations_operation
        WHERE job_type = name AND status IN ('queued', 'retry_scheduled') AND run_at <= now())
    FROM unnest(%(names)s::text[]) AS name"""
DEAD = """
    SELECT job_type, expected, count(*) FROM (
        SELECT job_type, expected FROM operations_deadletter WHERE resolution = 'waiting' LIMIT %(cap)s
    ) AS dead GROUP BY 1, 2"""
RECENT = """
    SELECT to_status, count(*) FROM (
        SELECT to_status FROM operations_transition
        WHERE at > now() - make_interval(mins => %(minutes)s)
            AND to_status IN ('succeeded', 'failed_permanent', 'ignored') LIMIT %(cap)s
    ) AS ended GROUP BY 1"""


def overview(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Add to the first page what this person may see of it."""
    may = request.user.has_perm
    context["title"] = "Overview"
    if may("operations.view_operation"):
        context |= _work()
    if may("operations.view_deadletter"):
        letters = DeadLetter.objects.select_related("operation__owner").defer("traceback")
        context |= {"failures": letters.filter(expected=False).order_by("-id")[:LATEST]}
    if may("operations.view_workernode"):
        context |= _processes(WorkerNode.objects.all(), timezone.now())
    if may("operations.view_auditentry"):
        context |= {"acts": AuditEntry.objects.order_by("-id")[:LATEST]}
    return context


def _work() -> dict[str, Any]:
    """Count operations and dead letters, by job type and in all."""
    rows = {job.name: _empty(job.name) for job in jobs.every()}
    for name, status, count, due in _asked(OPEN):
        row = rows.setdefault(name, _empty(name))
        row[status] = CappedCount(count)
        row["due"] = CappedCount(row["due"] + due)
    for name, expected, count in _asked(DEAD):
        rows.setdefault(name, _empty(name))["expected" if expected else "dead"] = CappedCount(count)
    for name, oldest in _asked(OLDEST, names=list(rows)):
        rows[name]["oldest"] = oldest
    return {
        "job_rows": sorted(rows.values(), key=lambda row: row["name"]),
        "in_all": _in_all(rows.values()),
        "ended": {status: CappedCount(count) for status, count in _asked(RECENT, minutes=RECENT_MINUTES)},
        "recent_minutes": RECENT_MINUTES,
    }


def _empty(name: str) -> dict[str, Any]:
    zero = CappedCount(0)
    counts = dict.fromkeys(("queued", "retry_scheduled", "processing", "due", "dead", "expected"), zero)
    return {"name": name, "oldest": None, **counts}


def _in_all(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    counts = ("queued", "retry_scheduled", "processing", "due", "dead", "expected")
    oldest = [row["oldest"] for row in rows if row["oldest"] is not None]
    return {
        **{count: CappedCount(sum(row[count] for row in rows)) for count in counts},
        "oldest": min(oldest, default=None),
        "late": bool(oldest) and _is_late(min(oldest)),
    }


def _is_late(oldest: datetime) -> bool:
    """Say whether the oldest due operation has waited longer than readiness tolerates."""
    return timezone.now() - oldest > timedelta(seconds=settings.READY_PATIENCE_SECONDS)


def _processes(nodes: Iterable[WorkerNode], now: datetime) -> dict[str, Any]:
    living = [node for node in nodes if alive(node, now)]
    workers = [node for node in living if node.kind == "worker"]
    return {
        "workers": len(workers),
        "slots": sum(node.slots for node in workers),
        "relays": len(living) - len(workers),
        "releases": sorted({node.release for node in living}),
    }


def _asked(sql: str, **values: Any) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(sql, {"cap": COUNT_CAP, **values})
        return cursor.fetchall()
