"""Kill what a stack leaves behind when it is killed.

It is told process groups through a pipe, "+123" for one that starts and "-123" for one that ended. The pipe
closes when the stack is gone, however that came; what is left then is killed. A group has the children of a
worker too, which a worker that is killed leaves alone while they are busy.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path


class Guardian:
    """The stack's end of the pipe."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, Path(__file__)],
            stdin=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,
        )

    def watch(self, group: int) -> None:
        self._tell(f"+{group}")

    def forget(self, group: int) -> None:
        self._tell(f"-{group}")

    def close(self) -> None:
        """End it; it kills what it still watches."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(f"{line}\n")


def guard(lines: Iterable[str]) -> None:
    groups: set[int] = set()
    for line in lines:
        if line.startswith("+"):
            groups.add(int(line[1:]))
        else:
            groups.discard(int(line[1:]))
    for group in groups:
        with contextlib.suppress(ProcessLookupError):  # it ended by itself
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    guard(sys.stdin)
