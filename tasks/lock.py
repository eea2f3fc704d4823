"""One holder at a time for a resource. A lock saves work and guards nothing: the fence does."""

from collections.abc import Iterator
from uuid import UUID

from operations import jobs
from tasks.lock_stores import Holder, InDatabase, InRedis, Store, StoreAway, now

__all__ = ["Holder", "StoreAway", "adopt", "every", "free", "hand_over", "holder", "is_free", "renew", "take"]

STORES: dict[str, Store] = {"redis": InRedis(), "database": InDatabase()}


def take(resource: str, *, token: UUID, operation_id: UUID, worker: str) -> Holder | None:
    """Take the lock, or learn who holds it. None: it is ours.

    A holder that is this very operation is a claim of its past; `adopt` it once the new claim is won.

    Raises:
        StoreAway: the store does not answer.
    """
    store, wanted = _store(resource), _holder(token, operation_id, worker)
    while not store.set_if_free(resource, wanted):
        if (held := store.holder(resource)) is not None:
            if held.operation_id != wanted.operation_id:
                store.ask_for(resource)
            return held
    return None


def adopt(resource: str, *, token: UUID, operation_id: UUID, worker: str) -> bool:
    """Put the winning claim's token into a lock that this operation already holds, or into a free one."""
    return _store(resource).adopt(resource, _holder(token, operation_id, worker))


def renew(resource: str, *, token: UUID) -> bool:
    """Move the lock's end. False: it is not ours any more."""
    return _store(resource).renew(resource, token)


def free(resource: str, *, token: UUID) -> bool:
    """Free the lock if this claim still holds it; another's is left alone."""
    return _store(resource).free(resource, token)


# Note [Who frees a lock wakes who waits, if somebody asked]
# Whoever finds a lock taken leaves a mark that it was asked for, then puts its operation off, then looks once
# more. Whoever hands a lock over looks for the mark after freeing. So either the mark is seen, or the last
# look finds the lock free. A mark outlives three polls: nobody deletes it, for others may wait as well.


def hand_over(resource: str, *, token: UUID) -> bool:
    """Free the lock as `free` does, and say whether somebody may wait for it. See the Note above."""
    return _store(resource).hand_over(resource, token)


def holder(resource: str) -> Holder | None:
    """Say who holds the lock.

    Raises:
        StoreAway: the store does not answer.
    """
    return _store(resource).holder(resource)


def is_free(resource: str) -> bool:
    """Say whether nobody holds the lock; False, too, if nobody can know."""
    try:
        return holder(resource) is None
    except StoreAway:
        return False


def every() -> Iterator[tuple[str, str, Holder]]:
    """Give (store, resource, holder) of each lock that is held.

    Raises:
        StoreAway: a store does not answer.
    """
    for name, store in STORES.items():
        for resource, held in store.every():
            yield name, resource, held


def _store(resource: str) -> Store:
    return STORES[jobs.lock_of(resource)]


def _holder(token: UUID, operation_id: UUID, worker: str) -> Holder:
    return Holder(str(token), str(operation_id), worker, now())
