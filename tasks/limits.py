"""Stop a run at its soft limit, but only inside the code that a job brings."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from tasks.retry import SoftLimitPassed


@contextmanager
def soft_limit(seconds: float) -> Iterator[None]:
    """Raise SoftLimitPassed in the block once `seconds` are over; zero or less: at once.

    Works by SIGALRM, so in the main thread only; elsewhere the hard limit stands alone.
    """
    if seconds <= 0:
        raise SoftLimitPassed("the soft limit had passed before the work began")
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, _stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _stop(number: int, frame: FrameType | None) -> None:
    raise SoftLimitPassed("the soft limit has passed")
