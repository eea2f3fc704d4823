"""What a run tells the breaker of its dependency, and what it hears.

A success is counted in this process and writes nothing. A failure writes what the process has counted since
it last wrote, and the same statement says how the breaker stands. See operations/dependencies.py.
"""

import logging
import random
import time
from collections import Counter
from dataclasses import replace
from uuid import UUID

from django.conf import settings
from django.db import DatabaseError, InterfaceError

from operations import dependencies, metrics
from operations.claims import Claim
from operations.dead_letters import Failure
from operations.dependencies import Verdict
from operations.jobs import Job
from operations.models import Category
from tasks.duties import Duties

log = logging.getLogger(__name__)

# Failures that the dependency is blamed for.
UNREACHED = (Category.DEPENDENCY_UNAVAILABLE, Category.TIMEOUT, Category.OUTCOME_UNKNOWN)
NOTHING_LEARNED = Verdict(opened=False, held=False, pause_seconds=0.0)

_calls: Counter[str] = Counter()  # by dependency, since this process last wrote them
_since: dict[str, float] = {}  # time.monotonic() of the first of them


def may_begin(task: Duties, token: UUID) -> bool:
    """Say whether a run may go on to its claim. A probe must first be the only one."""
    if not task.is_probe:
        return True
    return bool(task.job.dependency) and dependencies.take_probe(task.job.dependency, token=token)


def give_back(task: Duties, token: UUID) -> None:
    """Let another be the probe: this run was not begun."""
    if task.is_probe and task.job.dependency:
        dependencies.give_probe_back(task.job.dependency, token=token)


def answered(task: Duties) -> None:
    """Note that a dependency has given an answer, whatever came of it."""
    name = task.job.dependency
    if not name:
        return
    _calls[name] = _recent(name) + 1


def note(task: Duties, claim: Claim, ended: object) -> Verdict:
    """Tell the breaker how a run has ended: with a Failure, an operation, or in vain.

    If that cannot be written, nothing is learned, and the failure is one like any other.
    """
    failure = ended if isinstance(ended, Failure) else None
    if not task.job.dependency or task.job.call is None:
        return NOTHING_LEARNED
    try:
        if task.is_probe:
            return _end_probe(task.job, claim, ended)
        if failure is not None and _is_to_blame(task.job, failure):
            return _count(task.job, claim, failure)
    except (DatabaseError, InterfaceError) as error:
        log.warning("breaker.not_told", extra={"error": type(error).__name__})
        return NOTHING_LEARNED
    answered(task)
    return NOTHING_LEARNED


def with_pause(failure: Failure, verdict: Verdict) -> Failure:
    """Let a retry wait for as long as the retry budget asks, and not all of them until the same moment."""
    if not verdict.pause_seconds:
        return failure
    asked = failure.retry_after_seconds or 0.0
    spread = random.uniform(0, settings.BREAKER_WINDOW_SECONDS)  # noqa: S311 (no secret)
    return replace(failure, retry_after_seconds=max(asked, verdict.pause_seconds + spread))


def _recent(name: str) -> int:
    """Give the calls that were counted and not written; those from before this window are forgotten."""
    now = time.monotonic()
    if now - _since.setdefault(name, now) > settings.BREAKER_WINDOW_SECONDS:
        _since[name], _calls[name] = now, 0
    return _calls[name]


def _is_to_blame(job: Job, failure: Failure) -> bool:
    return failure.category in UNREACHED and failure.dependency == job.dependency and not failure.parked


def _count(job: Job, claim: Claim, failure: Failure) -> Verdict:
    name, operation = job.dependency, claim.operation
    if operation.started_at is None:
        raise ValueError(f"{operation} was claimed and has not started")
    calls = _recent(name) + 1
    _calls.pop(name, None)
    _since.pop(name, None)
    verdict = dependencies.count(
        name,
        calls=calls,
        failures=1,
        began_at=operation.started_at,
        reason=f"{failure.error_class}: {failure.message}",
        at_once=failure.shuts,
    )
    if verdict.opened:
        metrics.BREAKER_TRANSITIONS.labels(name, "open").inc()
        log.error("breaker.opened", extra={"dependency": name, "error": failure.message})
    return verdict


def _end_probe(job: Job, claim: Claim, ended: object) -> Verdict:
    """Conclude a probe. One that failed has its attempt back: it was sent to find out."""
    name, token = job.dependency, claim.token
    match ended:
        case Failure() if _is_to_blame(job, ended) or ended.category == Category.RATE_LIMITED:
            reason = f"{ended.error_class}: {ended.message}"
            dependencies.probe_failed(name, token=token, reason=reason)
            metrics.BREAKER_TRANSITIONS.labels(name, "open").inc()
            log.warning("breaker.probe_failed", extra={"dependency": name, "error": ended.message})
            return Verdict(opened=False, held=True, pause_seconds=0.0)
        case BaseException():  # the claim was lost or handed back: nothing is known
            dependencies.give_probe_back(name, token=token)
        case _:
            _probe_answered(name, token)
    return NOTHING_LEARNED


def _probe_answered(name: str, token: UUID) -> None:
    enough = dependencies.probe_answered(name, token=token)
    if enough is not None:
        to = "releasing" if enough else "half_open"
        metrics.BREAKER_TRANSITIONS.labels(name, to).inc()
        log.warning(f"breaker.{to}", extra={"dependency": name})  # noqa: G004 (a constant for each state)
