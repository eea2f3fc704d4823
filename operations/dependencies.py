"""Every change of a breaker's row, each one statement, with the hold that it opens or ends.

Times are the database's. A result counts only in the generation in which its call began: a call that was
claimed before the last change says nothing about what came after.
"""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.conf import settings
from django.db import transaction

from operations import jobs, statements
from operations.models import Dependency, DependencyState, HoldKind

# A state that this code does not know is neither of these, and so it is probed like a half open one.
LETS_PASS = "('closed', 'releasing')"  # noqa: S105 (states, no password)

_SEEN = "WITH seen AS (SELECT * FROM operations_dependency WHERE name = %(name)s FOR NO KEY UPDATE)"
_END_HOLD = """ended AS (
        UPDATE operations_hold SET ended_at = clock_timestamp()
        WHERE scope = 'dependency:' || %(name)s::text AND ended_at IS NULL AND {when}
    )"""
_OPEN_HOLD = """held AS (
        INSERT INTO operations_hold
            (scope, kind, job_types, began_at, per_second, paced_until, reason, actor)
        SELECT 'dependency:' || %(name)s::text, %(kind)s, %(job_types)s::text[], clock_timestamp(),
            %(per_second)s, clock_timestamp(), {reason}, 'breaker'
        WHERE {when}
        ON CONFLICT DO NOTHING
    )"""
_OPENS = "EXISTS (SELECT FROM judged WHERE opens)"

COUNT = f"""
    {_SEEN}, added AS (
        SELECT *, state IN {LETS_PASS} AND %(began_at)s >= changed_at AS counted,
            window_ends_at > clock_timestamp() AS goes_on
        FROM seen
    ), window_now AS (
        SELECT name, state, counted, changed_at, goes_on,
            CASE WHEN goes_on THEN calls ELSE 0 END + %(calls)s AS calls,
            CASE WHEN goes_on THEN failures ELSE 0 END + %(failures)s AS failures,
            CASE WHEN goes_on THEN retries ELSE 0 END AS retries,
            CASE WHEN goes_on THEN window_ends_at
                ELSE clock_timestamp() + make_interval(secs => %(window)s) END AS window_ends_at
        FROM added
    ), judged AS (
        SELECT *, counted AND (%(at_once)s OR failures >= %(threshold)s
                AND failures * 100 >= %(percent)s * calls) AS opens,
            counted AND retries >= GREATEST(%(free_retries)s, %(retry_share)s * calls) AS spent
        FROM window_now
    ), changed AS (
        UPDATE operations_dependency AS d
        SET calls = CASE WHEN opens THEN 0 ELSE j.calls END,
            failures = CASE WHEN opens THEN 0 ELSE j.failures END,
            retries = CASE WHEN opens THEN 0 ELSE j.retries + (NOT spent)::int END,
            window_ends_at = j.window_ends_at, reason = %(reason)s,
            state = CASE WHEN opens THEN 'open' ELSE d.state END,
            generation = d.generation + opens::int,
            changed_at = CASE WHEN opens THEN clock_timestamp() ELSE d.changed_at END,
            probe_at = CASE WHEN opens THEN clock_timestamp() + make_interval(secs => %(first_probe)s)
                ELSE d.probe_at END,
            probes_failed = 0, probes_succeeded = 0
        FROM judged AS j WHERE d.name = j.name AND j.counted
    ), {_END_HOLD.format(when=_OPENS)}, {_OPEN_HOLD.format(when=_OPENS, reason="%(reason)s")}
    SELECT opens, opens OR state NOT IN {LETS_PASS} OR %(began_at)s < changed_at,
        CASE WHEN spent THEN extract(epoch FROM window_ends_at - clock_timestamp())::float8 ELSE 0 END
    FROM judged"""  # noqa: S608 (only constants are put in)

TAKE_PROBE = f"""
    UPDATE operations_dependency
    SET probe_token = %(token)s, probe_expires_at = clock_timestamp() + make_interval(secs => %(lease)s)
    WHERE name = %(name)s AND state NOT IN {LETS_PASS} AND probe_at <= clock_timestamp()
        AND probe_token IS NULL
    RETURNING name"""  # noqa: S608

_PROBED_ENOUGH = "EXISTS (SELECT FROM judged WHERE enough)"
PROBE_ANSWERED = f"""
    {_SEEN}, judged AS (
        SELECT name, probes_succeeded + 1 >= %(wanted)s AS enough FROM seen
        WHERE probe_token = %(token)s AND probe_expires_at > clock_timestamp()
    ), changed AS (
        UPDATE operations_dependency AS d
        SET probe_token = NULL, probe_expires_at = NULL, probe_at = clock_timestamp(), probes_failed = 0,
            probes_succeeded = d.probes_succeeded + 1,
            state = CASE WHEN enough THEN 'releasing' ELSE 'half_open' END,
            generation = d.generation + enough::int,
            changed_at = CASE WHEN enough THEN clock_timestamp() ELSE d.changed_at END,
            calls = 0, failures = 0, retries = 0, window_ends_at = clock_timestamp()
        FROM judged AS j WHERE d.name = j.name
    ), {_END_HOLD.format(when=_PROBED_ENOUGH)}, {_OPEN_HOLD.format(when=_PROBED_ENOUGH, reason="''")}
    SELECT enough FROM judged"""  # noqa: S608

# The interval grows with each failure in a row; an expired lease is one.
PROBE_FAILED = """
    UPDATE operations_dependency
    SET probe_token = NULL, probe_expires_at = NULL, state = 'open', probes_succeeded = 0,
        probes_failed = probes_failed + 1, reason = CASE WHEN %(reason)s = '' THEN reason ELSE %(reason)s END,
        probe_at = clock_timestamp() + make_interval(secs => LEAST(%(longest_probe)s::float8,
            %(first_probe)s::float8 * 2 ^ LEAST(probes_failed + 1, 20)))
    WHERE {which}
    RETURNING name"""
PROBE_REFUSED = PROBE_FAILED.format(which="name = %(name)s AND probe_token = %(token)s")
PROBE_LOST = PROBE_FAILED.format(which="probe_expires_at <= clock_timestamp()")

RELEASED = """
    WITH closed AS (
        UPDATE operations_dependency SET state = 'closed' WHERE name = %(name)s AND state = 'releasing'
        RETURNING name
    )
    UPDATE operations_hold SET ended_at = clock_timestamp()
    WHERE scope = 'dependency:' || %(name)s::text AND kind = 'release' AND ended_at IS NULL
        AND EXISTS (SELECT FROM closed)
    RETURNING id"""


@dataclass(frozen=True)
class Verdict:
    """What a failed call learned of its dependency."""

    opened: bool  # by this very failure
    held: bool  # shut off now, or was since the call began: nobody's attempt is spent
    pause_seconds: float  # how long the retry budget asks for; 0: it has something left


def count(name: str, *, calls: int, failures: int, began_at: datetime, reason: str, at_once: bool) -> Verdict:
    """Add what a process has seen since it last wrote, and learn how the breaker stands.

    Opens it when the window holds enough failures, or `at_once`. Opens a transaction the first time.
    """
    values = {
        **_hold(name, HoldKind.BREAKER, per_second=0),
        "calls": calls,
        "failures": failures,
        "began_at": began_at,
        "reason": reason[:300],
        "at_once": at_once,
        "window": settings.BREAKER_WINDOW_SECONDS,
        "threshold": settings.BREAKER_FAILURES,
        "percent": settings.BREAKER_PERCENT,
        "free_retries": settings.BREAKER_FREE_RETRIES,
        "retry_share": settings.BREAKER_RETRY_SHARE,
        "first_probe": settings.BREAKER_FIRST_PROBE_SECONDS,
    }
    row = statements.row(COUNT, values)
    if row is None:  # nobody has ever failed to reach it
        with transaction.atomic():
            fresh = {"changed_at": began_at}
            Dependency.objects.get_or_create(name=name, defaults=fresh)
        row = statements.row(COUNT, values)
    if row is None:
        raise AssertionError(f"dependency {name!r} vanished")
    return Verdict(*row)


def take_probe(name: str, *, token: UUID) -> bool:
    """Become the one probe of a dependency, if it is time for one and nobody else is."""
    return (
        statements.row(TAKE_PROBE, {"name": name, "token": token, "lease": settings.LEASE_SECONDS})
        is not None
    )


def probe_answered(name: str, *, token: UUID) -> bool | None:
    """Note a probe that was answered; True: it was the last one wanted, None: it is no probe any more."""
    values = {
        **_hold(name, HoldKind.RELEASE, per_second=settings.BREAKER_RELEASE_PER_SECOND),
        "token": token,
        "wanted": settings.BREAKER_PROBES,
    }
    row = statements.row(PROBE_ANSWERED, values)
    return None if row is None else bool(row[0])


def probe_failed(name: str, *, token: UUID, reason: str) -> bool:
    """Note a probe that was not answered. False: it is no probe any more."""
    values = {"name": name, "token": token, "reason": reason[:300], **_intervals()}
    return statements.row(PROBE_REFUSED, values) is not None


def give_probe_back(name: str, *, token: UUID) -> None:
    """Say that a probe learned nothing; the next may go at once."""
    ours = Dependency.objects.filter(name=name, probe_token=token)
    ours.update(probe_token=None, probe_expires_at=None)


def fail_lost_probes() -> list[str]:
    """Count probes whose lease is over as failed; give the names of their dependencies."""
    return [str(row[0]) for row in statements.rows(PROBE_LOST, {"reason": "", **_intervals()})]


def released(name: str) -> bool:
    """End the release: nothing waits any more. False: it is no longer being released."""
    return statements.row(RELEASED, {"name": name}) is not None


def shut() -> list[Dependency]:
    """Give the dependencies that are open or half open."""
    passing = (DependencyState.CLOSED, DependencyState.RELEASING)
    return list(Dependency.objects.exclude(state__in=passing))


def _hold(name: str, kind: HoldKind, *, per_second: float) -> dict[str, object]:
    return {
        "name": name,
        "kind": str(kind),
        "job_types": jobs.depending_on(name),
        "per_second": per_second,
    }


def _intervals() -> dict[str, float]:
    return {
        "first_probe": settings.BREAKER_FIRST_PROBE_SECONDS,
        "longest_probe": settings.BREAKER_LONGEST_PROBE_SECONDS,
    }
