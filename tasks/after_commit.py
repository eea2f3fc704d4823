"""Do what a move owes the outside: make cached values stale, free the lock, wake who waits. Twice is fine."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple
from uuid import UUID

from django.db import DatabaseError, InterfaceError, connection
from redis.exceptions import RedisError

from operations import cache, lifecycle
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


def perform(owed: Owed) -> bool:
    """Do each part, even if the one before failed. False: the relay does it again."""
    writer = "" if owed.claim_token is None else owed.claim_token.hex
    fresh = [_done(partial(cache.invalidate, name, writer=writer)) for name in owed.invalidate]
    awaited = _hand_over(owed)
    crashpoint("after_commit.performed")
    if awaited is not False and owed.resource:
        wake(owed.resource)
    return all(fresh) and awaited is not None


def wake(resource: str) -> None:
    """Publish the oldest operation that waits for the lock of `resource`, if one does."""
    woken = lifecycle.wake(resource)
    if woken is not None:
        publish(woken)


def _hand_over(owed: Owed) -> bool | None:
    """Free the lock and say whether somebody may wait for it. None: it could not be freed."""
    if owed.claim_token is None or not owed.resource:
        return True
    try:
        return lock.hand_over(owed.resource, token=owed.claim_token) or owed.in_line
    except lock.StoreAway as error:
        log.warning("after_commit.put_off", extra={"error": type(error).__name__})
        return None


def _done(part: Callable[[], object]) -> bool:
    try:
        part()
    except (RedisError, OSError) as error:
        log.warning("after_commit.put_off", extra={"error": type(error).__name__})
        return False
    return True
