"""Connections to the cache, each of which asks at its beginning which run of the server it speaks to.

Named in settings.py: a server that was started anew may have read old revisions and values from a disk, and a
replica that took over may lack the last invalidations. So revisions of another run count for nothing.
"""

import re
import threading
from typing import Any

from redis.connection import ConnectionPool
from redis.exceptions import ResponseError

RUN = re.compile(rb"run_id:([0-9a-f]{8})")


class Pool(ConnectionPool):
    """Connections to one address. `run` is that of the server which the newest of them has met."""

    run = ""

    def __init__(self, **options: Any) -> None:
        """Take what redis-py's own pool takes."""
        self._here = threading.local()
        super().__init__(redis_connect_func=self._greet, **options)

    @property
    def run_met(self) -> str:
        """Give the run of the connection that this thread has used last."""
        return getattr(self._here, "run", "")

    def release(self, connection: Any) -> None:
        """Take a connection back. One that speaks to another server than the newest does is of no use."""
        self._here.run = getattr(connection, "run", "")
        if self._here.run != self.run:
            connection.disconnect()
        super().release(connection)

    def _greet(self, connection: Any) -> None:
        connection.on_connect()
        connection.run = self.run = run_of(connection)


def run_of(connection: Any) -> str:
    """Ask a server which run of it this is; empty: this user may not ask."""
    connection.send_command("INFO", "server")
    try:
        told = connection.read_response()
    except ResponseError:
        return ""
    found = RUN.search(told if isinstance(told, bytes) else str(told).encode())
    return found.group(1).decode() if found else ""
