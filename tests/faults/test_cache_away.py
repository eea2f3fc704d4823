"""Field case C23: the cache hangs, is cleared or is full, and what is beside it goes on."""

import json
import signal
import statistics
import subprocess
import sys
import time

import pytest

from deploy.local.procfile import ROOT
from tests.faults.lab import eventually

pytestmark = [pytest.mark.process, pytest.mark.embedded]

HANGS_SECONDS = 30.0
SLOW_READS = 5  # by which both web processes have found out
DATABASES = {"broker": 0, "cache": 1, "locks": 2, "quotas": 3}


@pytest.fixture(scope="module")
def lab(new_lab):
    return new_lab("provider", "web", "worker-inventory", "relay")


@pytest.fixture
def server(lab):
    """Give the server's settings to be changed; they are as before after the test."""
    with lab.broker as client:
        before = {name: client.config_get(name)[name] for name in ("maxmemory", "maxmemory-policy")}
        yield client
        for name, value in before.items():
            client.config_set(name, value)


def keys(lab, database):
    """Give what a database of the server holds, as it would be written to a disk."""
    with lab.broker as client:
        client.select(DATABASES[database])
        return {
            key: client.execute_command("OBJECT", "ENCODING", key) for key in client.scan_iter(count=1_000)
        }


def sync(lab, user, version):
    lab.set_items(user, version, sword=version)
    return lab.wait_final(user.ask("inventory/sync"))


class TestClear:
    def test_touches_nothing_but_the_cache(self, lab):
        user = lab.new_user()
        sync(lab, user, 1)
        user.inventory()
        lab.worker.terminate()
        lab.worker.wait()
        for _ in range(3):
            user.ask("inventory/sync")
        with lab.broker as client:
            client.select(DATABASES["locks"])
            client.set(f"{lab.stack.name}:lock:of somebody", "held")
        others = [name for name in DATABASES if name != "cache"]
        before = {name: keys(lab, name) for name in others}

        told = json.loads(lab.stack.manage("caches", "clear", "--reason", "a drill", "--json"))

        assert {each["cache"]: each["cleared"] for each in told}["inventory:view"] >= 1
        assert {name: keys(lab, name) for name in others} == before
        assert lab.queue_length("inventory.sync") >= 1
        assert user.inventory()["version"] == 1
        lab.worker.start()
        eventually(lambda: lab.queue_length("inventory.sync") == 0, what="the queue to be worked off")


class TestFull:
    def test_server_lets_requests_be_accepted_and_recovers(self, lab, server):
        """Broker, cache and locks of the lab are one server, so all of them are full."""
        user = lab.new_user()
        sync(lab, user, 1)
        lab.set_items(user, 2, sword=2)

        server.config_set("maxmemory", "1")
        id = user.ask("inventory/sync")
        assert user.inventory()["version"] == 1
        server.config_set("maxmemory", "0")

        assert lab.wait_final(id)["status"] == "succeeded"
        eventually(lambda: user.inventory()["version"] == 2, within=5, what="the new inventory")

    def test_cache_is_told_what_is_stale(self, lab, server):
        """To take a revision away needs no memory."""
        user = lab.new_user()
        sync(lab, user, 1)
        assert user.inventory()["version"] == 1
        lab.crash_at("worker-inventory", "finish.before_commit=pause=1")
        lab.set_items(user, 2, sword=2)
        id = user.ask("inventory/sync")
        lab.wait_for(id, "processing")

        time.sleep(0.3)
        server.config_set("maxmemory", "1")
        lab.wait_final(id)
        time.sleep(1)
        server.config_set("maxmemory", "0")

        assert user.inventory()["version"] == 2
        lab.crash_at("worker-inventory", "")


class TestReadOnly:
    def test_server_lets_what_is_cached_be_read_and_the_rest_loaded(self, lab, server):
        """As while another one takes over: a replica whose source is gone."""
        known, new = lab.new_user(), lab.new_user()
        sync(lab, known, 1)
        assert known.inventory()["version"] == 1
        server.execute_command("REPLICAOF", "127.0.0.1", "1")
        try:
            seen = [user.inventory()["version"] for user in (known, new) for _ in range(3)]
        finally:
            server.execute_command("REPLICAOF", "NO", "ONE")

        assert seen == [1, 1, 1, 0, 0, 0]


class TestRestart:
    def test_of_a_server_that_has_kept_old_keys_brings_nothing_back(self, lab):
        user = lab.new_user()
        sync(lab, user, 1)
        assert user.inventory()["version"] == 1
        with lab.broker as client:
            client.save()
        sync(lab, user, 2)
        assert user.inventory()["version"] == 2

        lab.stack.servers.valkey.kill()
        lab.stack.servers.valkey.restart()

        with lab.broker as client:
            client.select(DATABASES["cache"])
            assert list(client.scan_iter("*:value:inventory:view:*")), "nothing was kept"
        seen = {user.inventory()["version"] for _ in range(20)}
        assert seen == {2}


class TestPolicy:
    def test_that_drops_keys_is_warned_of_at_the_start(self, lab, server):
        server.config_set("maxmemory-policy", "allkeys-lru")

        command = [sys.executable, ROOT / "manage.py", "check"]
        done = subprocess.run(command, env=lab.stack.env, capture_output=True, text=True, check=True)

        for name in ("BROKER_URL", "LOCK_URL"):
            assert (
                f"the server of {name} drops keys when it is full: maxmemory-policy is allkeys-lru"
                in done.stderr
            )


class TestHang:
    def test_is_waited_for_a_few_times_only(self, lab):
        user = lab.new_user()
        sync(lab, user, 1)
        assert user.inventory()["version"] == 1
        took = []
        with lab.broker as client:
            client.execute_command("CLIENT", "PAUSE", str(int(HANGS_SECONDS * 1_000)), "ALL")
        until = time.monotonic() + HANGS_SECONDS - 1
        while time.monotonic() < until:
            began = time.monotonic()
            assert user.inventory() == {"version": 1, "items": [{"sku": "sword", "quantity": 1}]}
            took.append(time.monotonic() - began)
            time.sleep(0.05)

        later = took[SLOW_READS:]
        assert len(later) > 50
        assert statistics.quantiles(later, n=20)[-1] < 1, took

    def test_hides_no_commit_when_it_is_over(self, lab):
        """The commit comes while the cache hangs, for longer than its reader and its writer wait for it."""
        user = lab.new_user()
        sync(lab, user, 1)
        assert user.inventory()["version"] == 1
        lab.crash_at("worker-inventory", "finish.before_commit=pause=1")
        lab.set_items(user, 2, sword=2)
        id = user.ask("inventory/sync")
        lab.wait_for(id, "processing")
        time.sleep(0.3)

        relay = lab.stack.process("relay")
        relay.kill(signal.SIGSTOP)
        try:
            with lab.broker as client:
                client.execute_command("CLIENT", "PAUSE", "6000", "ALL")
            paused_at = time.monotonic()
            lab.wait_final(id)
            seen = list(self.read_until(user, paused_at + 12))
            owed = lab.rows("SELECT 1 FROM operations_aftercommit WHERE invalidate <> '[]'")
        finally:
            relay.kill(signal.SIGCONT)
        seen += self.read_until(user, time.monotonic() + 3)

        # Past the cache it is new at once; the cache is believed when it was told what it had missed.
        assert owed, "the cache was told: it did not hang"
        assert set(seen) == {2}
        eventually(lambda: self.is_cached(lab, user), what="a read that is a hit")
        lab.crash_at("worker-inventory", "")

    def read_until(self, user, end):
        while time.monotonic() < end:
            yield user.inventory()["version"]
            time.sleep(0.05)

    def is_cached(self, lab, user):
        before = lab.counted("ops_cache_requests_total", cache="inventory:view", result="hit")
        user.inventory()
        return lab.counted("ops_cache_requests_total", cache="inventory:view", result="hit") > before
