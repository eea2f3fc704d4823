"""What each child of a worker holds, and until when, written down where its parent sees it.

A child may die without a word, or be in C code that lets no thread of its own speak; this memory, made before
the fork, speaks for it.
"""

import mmap
import os
import struct
from typing import Any, NamedTuple
from uuid import UUID

from billiard import current_process

from tasks import drain

SLOTS = 1_024  # children of one worker; those beyond are not seen, and their leases end by themselves
SLOT = struct.Struct("q16sd")

_slots = mmap.mmap(-1, SLOT.size * SLOTS)


class Hold(NamedTuple):
    """A claim of one child."""

    pid: int
    operation_id: UUID
    until: float  # time.monotonic() of the end of its lease


def hold(operation_id: UUID, *, until: float) -> None:
    """Write down what this child holds."""
    _write(operation_id.bytes, until)


def let_go() -> None:
    """Write down that this child holds nothing."""
    _write(bytes(16), 0.0)


def every() -> list[Hold]:
    """Read what the children hold, or held when they died."""
    slots = (Hold(pid, UUID(bytes=id), until) for pid, id, until in SLOT.iter_unpack(_slots) if until)
    return list(slots)


def held_by(pid: int) -> UUID | None:
    """Read what one child holds; not always what its message names. See tasks/backlog.py."""
    return next((hold.operation_id for hold in every() if hold.pid == pid), None)


def forget(pid: int) -> None:
    """Blot out what a dead child held."""
    for index, (holder, *_) in enumerate(SLOT.iter_unpack(_slots)):
        if holder == pid:
            SLOT.pack_into(_slots, index * SLOT.size, 0, bytes(16), 0.0)


def _write(operation_id: bytes, until: float) -> None:
    if not drain.in_child():
        return
    process: Any = current_process()  # what billiard sets in a pool's children is not in its types
    if (index := process.index) < SLOTS:
        SLOT.pack_into(_slots, index * SLOT.size, os.getpid(), operation_id, until)
