"""One process of a stack: start it, wait for it, end it, and harm it as tests need."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import psutil

from deploy.local.children import spawn
from deploy.local.guardian import Guardian
from deploy.local.procfile import ROOT

READY_SECONDS = 60.0  # a worker needs 3 s on an idle machine
GRACE_SECONDS = 20.0  # between TERM and KILL
POLL_SECONDS = 0.05

Whom = Literal["parent", "children", "group"]


class ProcessFailed(RuntimeError):
    """A process ended, or was not ready in time."""


class Process:
    """A shell command that `exec`s, so that its pid is the program's."""

    def __init__(
        self,
        name: str,
        command: str,
        *,
        env: Mapping[str, str],
        log: Path,
        is_ready: "Callable[[Process], bool]",
        guardian: Guardian,
        cwd: Path = ROOT,
    ) -> None:
        self.name = name
        self._cwd = cwd
        self.command = command
        self.env = dict(env)
        self.log = log
        self._is_ready = is_ready
        self._guardian = guardian
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._groups: list[int] = []

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ProcessFailed(f"{self.name} was not started")
        return self._process.pid

    def launch(self) -> None:
        """Start it without waiting; from the main thread only."""
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self._process = spawn(
            ["sh", "-c", self.command],
            env=self.env,
            log=self.log,
            death_signal=signal.SIGKILL,
            cwd=self._cwd,
        )
        self._groups.append(self.pid)
        self._guardian.watch(self.pid)

    def wait_until_ready(self) -> None:
        """Wait for what this kind of process says or answers when it is ready.

        Raises:
            ProcessFailed: It ended or was not ready in time; the message has the end of its log.
        """
        give_up_at = time.monotonic() + READY_SECONDS
        while not self._is_ready(self):
            if not self.is_alive():
                raise ProcessFailed(f"{self.name} ended with {self.exit_code()} at its start.\n{self.tail()}")
            if time.monotonic() > give_up_at:
                raise ProcessFailed(f"{self.name} was not ready after {READY_SECONDS} s.\n{self.tail()}")
            time.sleep(POLL_SECONDS)

    def is_ready(self) -> bool:
        """Say whether it runs and has said or answered that it is ready."""
        return self.is_alive() and self._is_ready(self)

    def start(self) -> None:
        self.launch()
        self.wait_until_ready()

    def stop(self, grace_seconds: float = GRACE_SECONDS) -> int | None:
        """End it with TERM, then KILL, and whatever it and its former selves left; give its exit code."""
        self.terminate()
        self.wait(grace_seconds)
        return self.exit_code()

    def restart(self) -> None:
        self.stop()
        self.start()

    def terminate(self) -> None:
        """Ask it to end; one that is stopped in its tracks first goes on."""
        if self.is_alive():
            self.kill(signal.SIGCONT, whom="group")
            self.kill(signal.SIGTERM)

    def wait(self, seconds: float = GRACE_SECONDS) -> int | None:
        """Wait for its end, kill what is left after that, and give the exit code."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # then it is killed, below
                self._process.wait(seconds)
        for group in self._groups:
            _signal_group(group, signal.SIGKILL)
            self._guardian.forget(group)
        self._groups.clear()
        return None if self._process is None else self._process.wait()

    def kill(self, with_signal: signal.Signals = signal.SIGKILL, whom: Whom = "parent") -> None:
        """Send a signal to the process itself, to its children, or to all of them at once.

        A parent that is killed so may leave children, as it would in production; stop() removes them.
        """
        if whom == "group":
            _signal_group(self.pid, with_signal)
            return
        for process in [psutil.Process(self.pid)] if whom == "parent" else self.children():
            with contextlib.suppress(psutil.NoSuchProcess):  # a child that ended meanwhile
                process.send_signal(with_signal)

    def children(self) -> list[psutil.Process]:
        """Give all its descendants; none when it is dead."""
        return psutil.Process(self.pid).children(recursive=True) if self.is_alive() else []

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def exit_code(self) -> int | None:
        """Give the exit code, negative for a signal; None while it runs."""
        return None if self._process is None else self._process.poll()

    def output(self) -> str:
        """Give what it wrote since its last start."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def tail(self, lines: int = 30) -> str:
        """Give the end of its output, with the log's path."""
        return "\n".join([f"{self.log}:", *self.output().splitlines()[-lines:]])


def _signal_group(group: int, with_signal: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # all of it ended
        os.killpg(group, with_signal)
