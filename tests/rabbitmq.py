"""A RabbitMQ of a test's own, from the machine's package: one node, on free ports, that may be killed."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

import pytest

from deploy.local.children import spawn
from deploy.local.named import ServerUnreachable, look_at_broker
from deploy.local.ports import LOOPBACK, Port

PROGRAMS = Path("/usr/lib/rabbitmq/bin")  # those that ask nobody for another user, as the ones on PATH do
EPMD = shutil.which("epmd", path=f"/usr/bin:{os.defpath}")
START_SECONDS = 60.0
CONSUMER_TIMEOUT_SECONDS = 3
CONFIG = f"""
consumer_timeout = {CONSUMER_TIMEOUT_SECONDS * 1_000}
"""
ADVANCED = "[{rabbit, [{channel_tick_interval, 1000}]}].\n"  # ms between two looks at that timeout

installed = pytest.mark.skipif(
    not (PROGRAMS / "rabbitmq-server").exists() or EPMD is None,
    reason="the package rabbitmq-server is not installed (apt-get install rabbitmq-server)",
)


class Node:
    """One node, its name server and its data. Nothing of it is left when it has ended."""

    def __init__(self) -> None:
        """Reserve its ports."""
        self._directory = Path(tempfile.mkdtemp(prefix="teguh-"))
        self._ports = [Port() for _ in range(3)]
        self.port, distribution, names = [each.number for each in self._ports]
        self._name = f"teguh-{self.port}@localhost"
        self._env = {
            "PATH": f"/usr/bin:{os.defpath}",
            "HOME": str(self._directory),  # where the node keeps the secret that rabbitmqctl needs
            "RABBITMQ_NODENAME": self._name,
            "RABBITMQ_NODE_IP_ADDRESS": LOOPBACK,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": str(self._directory / "data"),
            "RABBITMQ_LOG_BASE": str(self._directory),
            "RABBITMQ_CONFIG_FILE": str(self._write("rabbitmq.conf", CONFIG)),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self._write("advanced.config", ADVANCED)),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._write("plugins", "[].\n")),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "ERL_EPMD_PORT": str(names),
            "ERL_EPMD_ADDRESS": LOOPBACK,
        }
        self._names: subprocess.Popen[bytes] | None = None
        self._node: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return self.url_at(self.port)

    @staticmethod
    def url_at(port: int) -> str:
        return f"amqp://guest:guest@{LOOPBACK}:{port}//"

    def start(self) -> None:
        """Start it, on the data there is, and wait until it answers."""
        if self._names is None:
            self._names = self._spawn("names", str(EPMD), "-address", LOOPBACK)
        self._node = self._spawn("node", PROGRAMS / "rabbitmq-server")
        give_up_at = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self._node.poll() is None, (self._directory / "node.log").read_text()
            assert time.monotonic() < give_up_at, f"RabbitMQ gave no answer for {START_SECONDS} s"
            time.sleep(0.1)

    def kill(self) -> None:
        """End it as a power failure would."""
        if self._node is not None:
            self._signal(signal.SIGKILL)
            self._node.wait()

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def ctl(self, *arguments: str) -> str:
        """Run rabbitmqctl on it and give what it prints."""
        command = [PROGRAMS / "rabbitmqctl", "--quiet", "--node", self._name, *arguments]
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        if self._names is not None:
            self._names.kill()
            self._names.wait()
        for port in self._ports:
            port.release()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _spawn(self, name: str, *command: str | Path) -> "subprocess.Popen[bytes]":
        log = self._directory / f"{name}.log"
        return spawn(command, env=self._env, log=log, death_signal=signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        assert self._node is not None, "it was not started"
        os.killpg(self._node.pid, number)

    def _answers(self) -> bool:
        try:
            look_at_broker(self.url)
        except ServerUnreachable:
            return False
        return True

    def _write(self, name: str, text: str) -> Path:
        path = self._directory / name
        path.write_text(text)
        return path
