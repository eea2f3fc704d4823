"""Stop without losing work: a worker that is told to end starts nothing, and hands back what it can't finish.

The word reaches the children through shared memory made before the fork: Celery tells only the parent, and a
TERM that a terminal or a container sends to the whole group would else end a child in mid-statement.
"""

import mmap
import os
import signal
import struct
import sys
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import Any

from billiard import current_process
from celery.signals import worker_shutting_down
from django.conf import settings

# A child that alone was told to end does so once it has given its message back, and not in the middle of it.
AFTERWARDS_SECONDS = 0.5
SAME_MOMENT_SECONDS = 0.2  # a run's start is stamped later than its message, from which the parent counts

_began = mmap.mmap(-1, 8)  # time.monotonic() of the word, one clock for all processes of a machine; 0.0: none
_told = False  # this child alone was sent a TERM
_busy = False  # this child runs an operation
_limit_at = 0.0  # time.monotonic() of that operation's hard limit
_wakeups: int | None = None  # file descriptor that says which signals this child was sent


class Interrupted(Exception):
    """The worker ends; the run is given back at a place from which another can go on."""


def begin() -> None:
    """Give the word, once; from the parent's signal handler."""
    if not _began_at():
        _began[:] = struct.pack("d", time.monotonic())


def begun() -> bool:
    return _began_at() > 0 or _in_a_hurry()


def time_is_up() -> bool:
    """Say whether a run must be handed back now for its worker to be out within GRACE_SECONDS."""
    _overhear()
    return begun() and seconds_left() < settings.GRACE_MARGIN_SECONDS


def seconds_left() -> float:
    """Give the rest of the grace period, once the word was given; in a hurry there is none."""
    began_at = _began_at()
    return began_at + settings.GRACE_SECONDS - time.monotonic() if began_at else 0.0


class Working:
    """While in it, a TERM to this child is a word and not an end."""

    def __init__(self, *, hard_limit: float) -> None:
        """Take the seconds after which the parent ends this child."""
        self._hard_limit = hard_limit

    def __enter__(self) -> None:
        global _busy, _limit_at
        _busy = True
        _limit_at = time.monotonic() + self._hard_limit - SAME_MOMENT_SECONDS
        _listen()

    def __exit__(self, *error: object) -> None:
        global _busy
        _busy = False
        if _told and not _began_at():
            threading.Timer(AFTERWARDS_SECONDS, os.kill, (os.getpid(), signal.SIGTERM)).start()


def _in_a_hurry() -> bool:
    """Say whether this child alone is told to end, and will soon be killed.

    At its hard limit it is as well, but then its run has failed: its parent says so, and nothing is handed
    back.
    """
    return _told and time.monotonic() < _limit_at


def _began_at() -> float:
    return float(struct.unpack("d", _began[:])[0])


@worker_shutting_down.connect
def _hear(**kwargs: Any) -> None:
    begin()


def in_child() -> bool:
    """Say whether this is a child of a worker's pool, which may end without taking others along."""
    return bool(current_process().name != "MainProcess")


def _listen() -> None:
    """Take over TERM in a pool child, at its first run: billiard sets its own after every hook there is.

    And QUIT, which ends a parent in a hurry, and without this would end a child that hears it on the spot.
    """
    global _wakeups
    if _wakeups is None and in_child():
        _wakeups, writing = os.pipe()
        for end in (_wakeups, writing):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, _on_term)
        signal.signal(signal.SIGQUIT, _on_term)


def _overhear() -> None:
    """Hear a signal in another thread than the main one, whose handler waits for the end of what it is in.

    Python runs handlers in the main thread, between two steps; a long sleep or call, if the signal came just
    before it or to another thread, is one step.
    """
    global _told
    if _wakeups is not None:
        with suppress(BlockingIOError):
            _told = _told or not {signal.SIGTERM, signal.SIGQUIT}.isdisjoint(os.read(_wakeups, 1_024))


def _on_term(number: int, frame: FrameType | None) -> None:
    global _told
    if not _busy:
        sys.exit(0)
    _told = True
