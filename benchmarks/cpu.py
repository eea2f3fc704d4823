"""CPU time of processes that we did not write: of all their threads, and of children that have ended."""

import sys
import time

import psutil

# clock_getcpuclockid(3) makes this number of a pid: the complement, three bits to the left, and the clock of
# the scheduler. It counts nanoseconds, where /proc and psutil count ticks of 10 ms.
SCHEDULER_CLOCK = 2
TRIES = 20


class Restless(RuntimeError):
    """A process tree changed whenever it was looked at."""


def seconds_of(pid: int, *, leaving_out: frozenset[int] = frozenset()) -> float:
    """Give the CPU seconds that a process and all its descendants have used, those that have ended included.

    A child that ends between two looks would be counted twice or not at all, so look until none did.

    Args:
        pid: The root of the tree.
        leaving_out: Descendants that are not to be counted.

    Raises:
        Restless: one ended during each of TRIES looks.
    """
    for _ in range(TRIES):
        before = _tree(pid)
        try:
            seconds = sum(_used(process) for process in before if process.pid not in leaving_out)
        except (psutil.NoSuchProcess, ProcessLookupError, OSError):
            continue
        if before == _tree(pid):
            return seconds
    raise Restless(f"the processes below {pid} come and go too fast to be counted")


def _tree(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *sorted(root.children(recursive=True), key=lambda process: process.pid)]


def _used(process: psutil.Process) -> float:
    times = process.cpu_times()
    ended = times.children_user + times.children_system
    if sys.platform == "linux":
        return time.clock_gettime(~process.pid << 3 | SCHEDULER_CLOCK) + ended
    return times.user + times.system + ended
