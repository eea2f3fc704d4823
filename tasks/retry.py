"""Decide what a failure means: another attempt and when, or the end and why. The one place that does."""

import random
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from django.conf import settings
from django.db import InterfaceError, OperationalError

from operations import dead_letters
from operations.cache import Unavailable
from operations.dead_letters import Failure
from operations.jobs import Job, Rejected
from operations.models import TRANSIENT, Category, Certainty, Operation, Reason

LONGEST_RETRY_AFTER_SECONDS = 3_600.0  # a dependency may ask for more, and is asked again after this


class CallFailed(Exception):
    """A call to the outside did not give an answer; its adapter says of what kind the failure is."""

    def __init__(
        self,
        category: str,
        message: str,
        dependency: str = "",
        *,
        retry_after_seconds: float | None = None,
        shuts: bool = False,
        certainty: str = Certainty.MAYBE_SENT,
    ) -> None:
        """Take a Category, what happened, whom we asked, and the pause the other side asked for.

        `shuts` says that our credentials are refused: no operation is at fault, and none can get through.
        `certainty` says what is proven of an effect: `not_sent` (nothing was done), `refused` (a definite
        no), or `maybe_sent`, which is all that a lost answer tells.
        """
        super().__init__(message)
        self.category = Category(category)
        self.dependency = dependency
        self.retry_after_seconds = retry_after_seconds
        self.shuts = shuts
        self.certainty = Certainty(certainty)


class Unknowable(CallFailed):
    """Nobody can say whether an effect was done: a person has to find out."""

    parked = True

    def __init__(self, message: str) -> None:
        """Say which."""
        super().__init__(Category.OUTCOME_UNKNOWN, message)


class SoftLimitPassed(KeyboardInterrupt):
    """The run's time is up. Not an Exception, so that no broad handler in a job swallows it.

    A KeyboardInterrupt, because psycopg cancels a running statement for nothing else: of any other error it
    leaves the connection busy, and with that connection the run could not even say that it failed.
    """


@dataclass(frozen=True)
class Again:
    """Try once more after `delay_seconds`."""

    delay_seconds: float


@dataclass(frozen=True)
class GiveUp:
    """No attempt can help, or none is left."""

    reason: str


def describe(error: BaseException, job: Job) -> Failure:
    """Reduce an error of a call or a handler to a Failure, with the category that its kind has."""
    if isinstance(error, CallFailed):
        category, dependency = error.category, error.dependency or job.dependency
    elif isinstance(error, SoftLimitPassed):
        category, dependency = Category.TIMEOUT, job.dependency if job.call is not None else ""
    elif isinstance(error, (OperationalError, InterfaceError)):
        category, dependency = Category.DEPENDENCY_UNAVAILABLE, "database"
    elif isinstance(error, Unavailable):
        category, dependency = Category.DEPENDENCY_UNAVAILABLE, "cache"
    else:
        category, dependency = Category.BUSINESS_REJECTED if isinstance(error, Rejected) else Category.BUG, ""
    return dead_letters.from_exception(error, category=category, dependency=dependency)


def decide(operation: Operation, failure: Failure, *, pause_seconds: float) -> Again | GiveUp:
    """Choose between another attempt and the end. `pause_seconds` is the backoff, already jittered.

    What the other side asks for (Retry-After) is a floor, up to LONGEST_RETRY_AFTER_SECONDS.
    """
    if failure.category not in TRANSIENT:
        return GiveUp(failure.category)
    if operation.attempt >= operation.max_attempts:
        timed_out = failure.category == Category.TIMEOUT
        return GiveUp(Reason.TIMEOUT_EXHAUSTED if timed_out else Reason.ATTEMPTS_EXHAUSTED)
    asked = min(failure.retry_after_seconds or 0.0, LONGEST_RETRY_AFTER_SECONDS)
    return Again(max(pause_seconds, asked))


def jittered(seconds: float, *, uniform: float | None = None) -> float:
    """Stretch a pause to seconds * (1 + U(0, 1)), so that what failed together does not return together."""
    return seconds * (1 + (random.random() if uniform is None else uniform))  # noqa: S311 (spreads load, hides nothing)


def look_up_pause(lookups: int) -> float:
    """Give the seconds until the next look-up, before jitter: doubled with each, from one second on."""
    return min(2.0 ** min(lookups, 20), settings.LONGEST_LOOKUP_PAUSE_SECONDS)


def retry_after_seconds(header: str | None, *, now: datetime | None = None) -> float | None:
    """Read Retry-After, seconds or an HTTP date (RFC 9110 section 10.2.3). None for none or garbage."""
    if header is None:
        return None
    if header.strip().isdecimal():
        return min(float(header), LONGEST_RETRY_AFTER_SECONDS)
    try:
        when = parsedate_to_datetime(header)
    except (ValueError, OverflowError):
        return None
    when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    return max(0.0, (when - (datetime.now(UTC) if now is None else now)).total_seconds())
