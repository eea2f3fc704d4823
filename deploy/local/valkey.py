"""Valkey (or Redis) as a child process."""

import os
import signal
import subprocess

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from deploy.local import binaries
from deploy.local.children import spawn
from deploy.local.server import Server


class Valkey(Server):
    """Broker, cache, locks and quotas of one machine, in four databases of one server."""

    name = "valkey"
    socket_name = "valkey.sock"

    @property
    def url(self) -> str:
        """URL without a database number."""
        return f"unix://{self.socket}"

    def _spawn(self) -> "subprocess.Popen[bytes]":
        return spawn(
            [binaries.valkey(), *self._options()],
            env={"PATH": os.defpath, "LC_ALL": "C.UTF-8", "TZ": "UTC"},
            log=self.log,
            death_signal=signal.SIGTERM,
            keep_open=[self.lock],
        )

    def _options(self) -> list[str]:
        options = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self.directory),
            "save": "",
            "appendonly": "yes" if self.durable else "no",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
        }
        return [part for name, value in options.items() for part in (f"--{name}", value)]

    def _answers(self) -> bool:
        client = redis.Redis(unix_socket_path=str(self.socket), socket_timeout=1, retry=Retry(NoBackoff(), 0))
        try:
            return bool(client.ping())
        except (redis.ConnectionError, redis.TimeoutError):
            return False
        finally:
            client.close()
