"""A process of its own that reads and writes a cached value, as the lines that it is told say.

Its value is a row of `cache_rows`: what it is, how long it takes to load, and whether that fails. Each load
is a row of `cache_loads`, begun before the value is read.
"""

import json
import os
import random
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import django
from django.db import connection, transaction

django.setup()

from operations.cache import Cached, Unavailable  # noqa: E402 (the registry of apps comes first)


class Failing(Exception):
    """The row says so."""


def load(id: int) -> int:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO cache_loads (row_id, pid) VALUES (%s, %s)", [id, os.getpid()])
        cursor.execute("SELECT value, seconds, fails FROM cache_rows WHERE id = %s", [id])
        value, seconds, fails = cursor.fetchone()
    time.sleep(seconds)
    if fails:
        raise Failing
    return int(value)


cached = Cached("tests:row", parts=("id",), load=load, **json.loads(sys.argv[1]))


def read(id: int, *, threads: int = 1, times: int = 1, pause: float = 0.0) -> dict[str, Any]:
    """Read in so many threads at once, each so many times; give [begun, seconds, value or error] of each."""
    start = Barrier(threads)

    def work(thread: int) -> list[list[Any]]:
        start.wait()
        try:
            return [_one(id, pause) for _ in range(times)]
        finally:
            connection.close()

    with ThreadPoolExecutor(threads) as pool:
        return {"reads": [seen for each in pool.map(work, range(threads)) for seen in each]}


def _one(id: int, pause: float) -> list[Any]:
    time.sleep(random.uniform(0, pause))
    at, began = time.time(), time.perf_counter()
    try:
        seen: Any = cached.get(id)
    except Unavailable as unavailable:
        seen = f"unavailable for {unavailable.wait:.1f}"
    return [at, time.perf_counter() - began, seen]


def write(id: int, value: int, *, hold: float = 0.0, end: str = "commit") -> dict[str, Any]:
    """Change the row and its cache in a transaction that is held before its end; give when it was over."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("UPDATE cache_rows SET value = %s WHERE id = %s", [value, id])
        if end == "die":
            transaction.on_commit(lambda: os.kill(os.getpid(), signal.SIGKILL))
        cached.invalidate_after_commit(id)
        time.sleep(hold)
        if end == "rollback":
            transaction.set_rollback(True)
    return {"at": time.time()}


def main() -> None:
    _say("ready")
    for line in sys.stdin:
        asked = json.loads(line)
        act = {"read": read, "write": write}[asked.pop("do")]
        _say(json.dumps(act(**asked)))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
