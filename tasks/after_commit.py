"""Do what a move owes the outside: make cached values stale, free the lock, wake who waits. Twice is fine."""

import logging
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from django.db import DatabaseError, InterfaceError, connection

from operations import cache_writers, lifecycle
from operations.cache_store import AWAY
from operations.crashpoints import crashpoint
from operations.models import Operation
from operations.publish import publish
from tasks import lock

log = logging.getLogger(__name__)


class Owed(NamedTuple):
    """What one move owes, as its AfterCommit row says."""

    id: int
    invalidate: Sequence[str]
    resource: str
    claim_token: UUID | None  # of the run: its lock, and its marks on cached values
    in_line: bool = True  # whether one in line may wait for it, whoever asked for the lock


# Note [Settled rows are forgotten in handfuls]
# Deleting each AfterCommit row when its work is done would be a commit for every run. They are deleted
# together, a moment later. A process that ends before that leaves them to the relay, and doing it all again
# is harmless.
_settled: deque[int] = deque()


def settle(operation: Operation, invalidate: Sequence[str] = ()) -> None:
    """Do what the move that returned `operation` owes, if it owes anything; outside its transaction."""
    crashpoint("after_commit.begin")
    if operation.after_commit_id is None:
        return
    in_line = operation.resource_seq is not None
    owed = Owed(
        operation.after_commit_id, invalidate, operation.resource, operation.claim_token, in_line=in_line
    )
    try:
        if perform(owed):
            _settled.append(owed.id)
    except (DatabaseError, InterfaceError) as error:  # the row stays, and the relay does it
        log.warning("after_commit.put_off", extra={"error": type(error).__name__})


def has_settled() -> bool:
    return bool(_settled)


def forget_settled() -> None:
    """Delete the rows of what was settled in this process; outside transactions."""
    ids = [_settled.popleft() for _ in range(len(_settled))]
    if not ids:
        return
    try:
        lifecycle.forget(ids)
    except (DatabaseError, InterfaceError) as error:
        connection.close()
        log.warning("after_commit.not_forgotten", extra={"rows": len(ids), "error": type(error).__name__})


def perform(owed: Owed, away: set[str] | None = None) -> bool:
    """Do each part, even if the one before failed. False: the relay does it again.

    `away` names stores that have not answered just now: they are not waited for again, and are added to.
    """
    away = set() if away is None else away
    told = _told(owed, away)
    awaited = _hand_over(owed, away)
    crashpoint("after_commit.performed")
    if awaited is not False and owed.resource:
        wake(owed.resource)
    return told and awaited is not None


def wake(resource: str) -> None:
    """Publish the oldest operation that waits for the lock of `resource`, if one does."""
    woken = lifecycle.wake(resource)
    if woken is not None:
        publish(woken)


def _told(owed: Owed, away: set[str]) -> bool:
    """Make the cached values stale, all at once."""
    if not owed.invalidate:
        return True
    if "cache" in away:
        return False
    writer = "" if owed.claim_token is None else owed.claim_token.hex
    try:
        cache_writers.invalidate(owed.invalidate, writer=writer)
    except AWAY as error:
        away.add("cache")
        log.warning("after_commit.put_off", extra={"error": type(error).__name__})
        return False
    return True


def _hand_over(owed: Owed, away: set[str]) -> bool | None:
    """Free the lock and say whether somebody may wait for it. None: it could not be freed."""
    if owed.claim_token is None or not owed.resource:
        return True
    if "locks" in away:
        return None
    try:
        return lock.hand_over(owed.resource, token=owed.claim_token) or owed.in_line
    except lock.StoreAway as error:
        away.add("locks")
        log.warning("after_commit.put_off", extra={"error": type(error).__name__})
        return None
