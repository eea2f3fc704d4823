"""Whom the cache speaks to: a server that comes back, that is replaced, that is no longer in charge."""

import socket
import subprocess
import time
from contextlib import suppress

import pytest
import redis
from django.test import override_settings

from deploy.local import binaries
from deploy.local.cable import Cable
from operations import (
    cache_store,
    cache_writers,
)
from tests.threads import until

NAME = "tests:colour:7"


class TestRestart:
    """A server that was started anew may have read old keys from its disk."""

    def test_brings_nothing_old_back(self, colour, source, restart):
        colour.get(7)
        client = cache_store.client()
        kept = {key: client.get(key) for key in client.scan_iter("*tests:colour*")}
        source.value = "new"
        cache_writers.invalidate([NAME])

        client.mset(kept)  # as from a snapshot
        assert colour.get(7) == "old"  # that is what the guard is for: in the same run, they count
        restart()

        assert colour.get(7) == "new"

    def test_is_noticed_by_who_connects_anew(self, colour, restart):
        colour.get(7)
        pool = cache_store.client().connection_pool
        before = pool.run
        restart()

        colour.get(7)

        assert pool.run != before

    def test_is_not_what_the_first_read_of_a_process_waits_for(self, colour, source):
        """It learns of the run while it reads, and reads again: the lead is its own already."""
        pool = cache_store.client().connection_pool
        pool.run = ""
        pool.disconnect()

        began = time.monotonic()
        assert colour.get(7) == "old"

        assert time.monotonic() - began < 1
        assert source.loads == 1

    @pytest.mark.parametrize(("times", "loads"), [(1, 1), (100, 2)], ids=["once", "over and over"])
    def test_in_the_middle_of_a_read_makes_it_read_again(
        self, colour, source, restart, monkeypatch, times, loads
    ):
        """Over and over, it is a cache that is away: then nothing is stored."""
        colour.get(8)
        asked, real = [], cache_store.script

        def script(*what):
            asked.append(what)
            if len(asked) <= times:
                restart()
            return real(*what)

        monkeypatch.setattr(cache_store, "script", script)

        assert [colour.get(7), colour.get(7)] == ["old", "old"]
        assert source.loads == 1 + loads


@pytest.fixture
def new_server(tmp_path):
    """Give a function that starts a server: its port, and a client."""
    started = []

    def start():
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [binaries.valkey(), "--port", str(port), "--save", "", "--dir", str(tmp_path)]
        command += ["--repl-diskless-sync-delay", "0"]
        client = redis.Redis(port=port)
        started.append((subprocess.Popen(command, stdout=subprocess.DEVNULL), client))
        until(lambda: _answers(client))
        return port, client

    yield start
    for process, client in started:
        client.close()
        process.terminate()
        process.wait(5)


class TestMoved:
    """An address (a service, a proxy, a name) that leads to another server now; the old one is there yet."""

    def test_server_is_not_taken_for_the_one_that_is_told(self, new_server, settings, colour, source):
        (first, _), (second, _) = new_server(), new_server()
        there = settings.CACHES["default"]
        with Cable(first) as address:
            settings.CACHES = {"default": {**there, "LOCATION": f"redis://127.0.0.1:{address.port}/0"}}
            colour.get(7)  # over a connection to the first
            pool = cache_store.client().connection_pool

            address.upstream = second
            to_first = pool.get_connection()  # another thread has it
            assert colour.get(7) == "old"  # over a connection to the second: it is stored there
            to_second = pool.get_connection()
            pool.release(to_first)
            source.value = "new"
            cache_writers.invalidate([NAME])  # over the one to the first it would count as told
            pool.release(to_second)

            assert colour.get(7) == "new"
            pool.disconnect()


class TestDemoted:
    """A primary that was made a replica keeps its clients: their hits write nothing, and are not refused."""

    def test_primary_serves_nothing_old(self, new_server, settings, colour, source):
        (first, one), (second, other) = new_server(), new_server()
        other.replicaof("127.0.0.1", first)
        until(lambda: other.info("replication").get("master_link_status") == "up")
        there = settings.CACHES["default"]

        def at(port):
            return override_settings(CACHES={"default": {**there, "LOCATION": f"redis://127.0.0.1:{port}/0"}})

        with at(first):
            assert colour.get(7) == "old"
            until(lambda: other.dbsize() == one.dbsize())
            other.replicaof("NO", "ONE")
            one.replicaof("127.0.0.1", second)
            until(lambda: one.info("replication").get("master_link_status") == "up")
        source.value = "new"
        with at(second):  # the writer has learned of the new primary
            cache_writers.invalidate([NAME])
            assert colour.get(7) == "new"
        with at(first):  # a reader whose connection nobody has closed
            assert colour.get(7) == "new"


def _answers(client):
    with suppress(redis.exceptions.ConnectionError):
        return client.ping()
