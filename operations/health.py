"""Is this process alive, and is the whole of it doing its work? Says no versions and no ids."""

from collections.abc import Callable

from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_safe

from operations import jobs
from operations.holds import FREE_TYPES, NOT_HELD
from operations.order import NOT_BLOCKED

RELAY_SEEN = """
    SELECT EXISTS (SELECT FROM operations_workernode WHERE kind = 'relay'
        AND last_seen_at > clock_timestamp() - make_interval(secs => %(patience)s))"""
# Nothing that may run is due for long, or something was started lately. The history's BRIN index makes that
# cheap to see.
PROGRESS = f"""
    SELECT NOT EXISTS (
        SELECT FROM operations_operation AS o WHERE o.status IN ('queued', 'retry_scheduled')
            AND o.run_at < clock_timestamp() - make_interval(secs => %(patience)s)
            AND o.job_type = ANY({FREE_TYPES}) AND {NOT_HELD} AND {NOT_BLOCKED})
    OR EXISTS (
        SELECT FROM operations_transition
        WHERE at > clock_timestamp() - make_interval(secs => %(patience)s) AND to_status = 'processing')"""  # noqa: S608 (only constants are put in)

_migrated = False  # once true, true for the life of this process


@require_safe
def live(request: HttpRequest) -> JsonResponse:
    """Answer 200 while the process can answer at all; asks nothing of anybody."""
    return JsonResponse({"live": True})


@require_safe
def ready(request: HttpRequest) -> JsonResponse:
    """Answer 200 if requests would be accepted and worked on, else 503; {ready, checks: {name: bool}}."""
    checks = {name: _holds(check) for name, check in CHECKS.items()}
    return JsonResponse(
        {"ready": all(checks.values()), "checks": checks}, status=200 if all(checks.values()) else 503
    )


def _holds(check: Callable[[], bool]) -> bool:
    try:
        return check()
    except (DatabaseError, InterfaceError):
        return False


def _database() -> bool:
    return _asked("SELECT true", 0)


def _migrations() -> bool:
    global _migrated
    if not _migrated:
        executor = MigrationExecutor(connection)
        _migrated = not executor.migration_plan(executor.loader.graph.leaf_nodes())
    return _migrated


def _relay() -> bool:
    return _asked(RELAY_SEEN, 10 + 3 * settings.RELAY_PERIOD_SECONDS)


def _progress() -> bool:
    return _asked(PROGRESS, settings.READY_PATIENCE_SECONDS)


def _asked(sql: str, patience_seconds: float) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(sql, {"patience": patience_seconds, "skip": jobs.skipping_the_dead()})
        return bool(cursor.fetchone()[0])


CHECKS = {"database": _database, "migrations": _migrations, "relay": _relay, "progress": _progress}
