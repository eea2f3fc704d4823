"""What PostgreSQL and Valkey have in common as child processes: start, stop, and the faults tests need."""

import contextlib
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psutil

SOCKET_PATH_LIMIT = 107  # sun_path in sys/un.h is 108 bytes, one of them the closing NUL
PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-")
POLL_SECONDS = 0.02


class ServerFailed(RuntimeError):
    """A server did not start, or did not stop."""


class Server:
    """One server that listens on a Unix socket only, so that no port of the machine can be in its way."""

    name: str
    socket_name: str
    stop_signal = signal.SIGTERM
    start_seconds = 30.0
    stop_seconds = 30.0

    def __init__(self, directory: Path, *, durable: bool, lock: int) -> None:
        """Prepare a server.

        Args:
            directory: Where its data, log and socket are; made if missing.
            durable: Whether data must survive the machine. False is for tests: faster, and still
                survives the death of the process.
            lock: File descriptor of the lock on the data; inherited, so it is held until the server is gone.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.durable = durable
        self.lock = lock
        self.log = directory / "log"
        self.sockets = _sockets_of(directory, self.socket_name)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        return self.sockets / self.socket_name

    @property
    def pid(self) -> int:
        if self.process is None:
            raise ServerFailed(f"{self.name} was not started")
        return self.process.pid

    def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            ServerFailed: It ended or did not answer in time; the message has the end of its log.
        """
        self.launch()
        give_up_at = time.monotonic() + self.start_seconds
        while not self._answers():
            if not self.is_alive():
                raise ServerFailed(f"{self.name} ended at its start.\n{self.tail()}")
            if time.monotonic() > give_up_at:
                self.kill()
                raise ServerFailed(f"{self.name} gave no answer for {self.start_seconds} s.\n{self.tail()}")
            time.sleep(POLL_SECONDS)

    def launch(self) -> None:
        """Start it without waiting."""
        self.process = self._spawn()

    def stop(self) -> None:
        """Stop it as its manual says; does nothing when it does not run."""
        if self.process is not None and self.is_alive():
            self.resume()
            self.process.send_signal(self.stop_signal)
            self._wait()
        if self.sockets != self.directory:
            _remove_sockets(self.sockets)

    def kill(self) -> None:
        """Kill -9 it with all its children, as a crash of its machine would."""
        self._send(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def pause(self) -> None:
        """Stop it in its tracks: it keeps connections and answers nothing."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after a pause."""
        self._send(signal.SIGCONT)

    def restart(self) -> None:
        """Start it on the same data and the same socket, after a stop or a kill."""
        self.stop()
        self.sockets.mkdir(mode=0o700, exist_ok=True)
        self.start()

    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def tail(self, lines: int = 20) -> str:
        """Give the end of its log, with the log's path."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join([f"{self.log}:", *text.splitlines()[-lines:]])

    def _spawn(self) -> "subprocess.Popen[bytes]":
        raise NotImplementedError

    def _answers(self) -> bool:
        raise NotImplementedError

    def _send(self, to_all: signal.Signals) -> None:
        for process in self._tree():
            with contextlib.suppress(psutil.NoSuchProcess):  # a session that ended meanwhile is no loss
                process.send_signal(to_all)

    def _tree(self) -> list[psutil.Process]:
        if not self.is_alive():
            return []
        server = psutil.Process(self.pid)
        return [server, *server.children(recursive=True)]

    def _wait(self) -> None:
        if self.process is None:
            return
        try:
            self.process.wait(self.stop_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerFailed(f"{self.name} did not stop in {self.stop_seconds} s.\n{self.tail()}") from None


def _sockets_of(directory: Path, socket_name: str) -> Path:
    """Give the directory for a socket: this one unless its path is too long, or a URL could not spell it."""
    path = str(directory / socket_name)
    if len(path) <= SOCKET_PATH_LIMIT and PLAIN.issuperset(path):
        return directory
    return Path(tempfile.mkdtemp(prefix="teguh-"))


def _remove_sockets(directory: Path) -> None:
    for leftover in directory.glob("*"):
        leftover.unlink()
    directory.rmdir()
