"""Let clients wait for a change of an operation (RFC 7240, `Prefer: wait=n`): few at a time, and briefly."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from operations.reading import Glimpse

LONGEST_SECONDS = 5  # half of what proxies and consoles commonly allow a request
MOST_WAITING = (
    2  # of a process's eight threads: those who only wait may not keep those who ask from an answer
)
# A glimpse costs the database a tenth of a millisecond. Each is a statement of its own, so no transaction is
# open between them; the thread keeps the connection that it has anyway.
LOOK_EVERY_SECONDS = 0.2

_places = threading.BoundedSemaphore(MOST_WAITING)


def preferred_seconds(prefer: str | None) -> int:
    """Read how long a client would wait, in seconds up to LONGEST_SECONDS; 0 if it does not say."""
    if prefer is None:
        return 0
    for preference in prefer.split(","):
        name, _, value = preference.partition(";")[0].partition("=")
        if name.strip().lower() == "wait":
            return _seconds(value.strip().strip('"'))
    return 0


@contextmanager
def place(server: Mapping[str, Any]) -> Iterator[bool]:
    """Give whether this request may wait, in the block: on a server with threads, while a place is free."""
    free = bool(server.get("wsgi.multithread")) and _places.acquire(blocking=False)
    try:
        yield free
    finally:
        if free:
            _places.release()


def for_change(
    look: Callable[[], Glimpse],
    *,
    is_known: Callable[[str], bool] | None,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], object] = time.sleep,
) -> Glimpse:
    """Look until the operation is over, is not known as it is, or the time is; give the last glimpse.

    `is_known` says of an ETag whether the client has it; None: what is seen first is what it knows. It must
    not be in a transaction.
    """
    give_up_at = clock() + seconds
    first = seen = look()
    while not seen.is_final and (left := give_up_at - clock()) > 0:
        if not (is_known(seen.etag) if is_known else seen.etag == first.etag):
            break
        pause(min(LOOK_EVERY_SECONDS, left))
        seen = look()
    return seen


def _seconds(value: str) -> int:
    if not (value.isascii() and value.isdecimal()) or len(value) > 9:
        return 0
    return min(int(value), LONGEST_SECONDS)
