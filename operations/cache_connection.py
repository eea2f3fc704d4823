"""Connections to the cache, each of which asks at its beginning which run of the server it speaks to.

Named in settings.py: a server that was started anew may have read old revisions and values from a disk, and a
replica that took over may lack the last invalidations. So revisions of another run count for nothing.
"""

import re
from typing import Any

from redis.connection import ConnectionPool
from redis.exceptions import ResponseError

RUN = re.compile(rb"run_id:([0-9a-f]{8})")


class Pool(ConnectionPool):
    """Connections to one server; `run` is the one that the last of them has met."""

    run = ""

    def __init__(self, **options: Any) -> None:
        """Take what redis-py's own pool takes."""
        super().__init__(redis_connect_func=self._greet, **options)

    def _greet(self, connection: Any) -> None:
        connection.on_connect()
        connection.send_command("INFO", "server")
        try:
            told = connection.read_response()
        except ResponseError:  # this user may not ask: then a restart is what it is for any cache
            told = b""
        found = RUN.search(told if isinstance(told, bytes) else str(told).encode())
        self.run = found.group(1).decode() if found else ""
