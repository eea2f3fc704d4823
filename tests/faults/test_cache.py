"""Field cases C21 and C22: readers and writers of a cached value in processes of their own."""

import json
import random
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from deploy.local.procfile import ROOT
from tests.faults.lab import MARGIN_SECONDS, RELAY_PERIOD_SECONDS, eventually

pytestmark = [pytest.mark.process, pytest.mark.embedded]

LEAD_SECONDS = 3.0  # of a rebuild
COOL_SECONDS = 5.0  # as in operations/cache_rebuild.py
ID = 7
TABLES = """
    CREATE TABLE IF NOT EXISTS cache_rows (id int PRIMARY KEY, value int NOT NULL,
        seconds float NOT NULL DEFAULT 0, fails boolean NOT NULL DEFAULT false);
    CREATE TABLE IF NOT EXISTS cache_loads (row_id int, pid int, at timestamptz DEFAULT clock_timestamp())"""


class Peer:
    """A process that is told what to do, a line at a time."""

    def __init__(self, lab, **how):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.cache_process", json.dumps(how)],
            env=lab.stack.env | {"PYTHONPATH": str(ROOT), "REDIS_TIMEOUT_SECONDS": "5"},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._waiting = ThreadPoolExecutor(1)
        self._is_ready = False

    @property
    def pid(self):
        return self._process.pid

    def wait_until_ready(self):
        """Wait for its start: several start at the same time."""
        if not self._is_ready:
            assert self._process.stdout.readline() == "ready\n"
            self._is_ready = True

    def begin(self, **asked):
        """Tell it to do something; give the future of what it says."""
        self.wait_until_ready()
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return self._waiting.submit(self._process.stdout.readline)

    def read(self, **how):
        return self.reads(self.begin(do="read", id=ID, **how))

    def reads(self, future):
        """Wait for reads, and give [begun, seconds, value] of each."""
        return json.loads(future.result(60))["reads"]

    def write(self, value, **how):
        return json.loads(self.begin(do="write", id=ID, value=value, **how).result(60))["at"]

    def kill(self):
        self._process.kill()
        self._process.wait()

    def close(self):
        self.kill()
        self._waiting.shutdown()
        self._process.stdin.close()
        self._process.stdout.close()


@pytest.fixture(scope="module")
def lab(new_lab):
    lab = new_lab("provider", "web", "worker-inventory", "relay", env={"WEB_THREADS": "30"})
    lab.database.execute(TABLES)
    return lab


@pytest.fixture
def row(lab):
    """Have a row to be cached, and nothing of it in the cache; give a function that changes it."""
    lab.database.execute("TRUNCATE cache_rows, cache_loads")
    lab.database.execute("INSERT INTO cache_rows (id, value) VALUES (%s, 0)", [ID])
    lab.broker.flushall()

    def change(**values):
        for name, value in values.items():
            lab.database.execute(f"UPDATE cache_rows SET {name} = %s WHERE id = %s", [value, ID])

    return change


@pytest.fixture
def new_peer(lab, row):
    peers = []

    def new(**how):
        peers.append(Peer(lab, **{"ttl_seconds": 60, "rebuild_seconds": LEAD_SECONDS, **how}))
        return peers[-1]

    yield new
    for peer in peers:
        peer.close()


def loads(lab):
    return len(lab.rows("SELECT 1 FROM cache_loads"))


def values(reads):
    return [value for _, _, value in reads]


class TestCommit:
    """C21."""

    def test_is_seen_a_second_after_it_and_not_before(self, lab):
        user = lab.new_user()
        lab.set_items(user, 1, sword=1)
        lab.crash_at("worker-inventory", "finish.before_commit=pause=2")
        assert user.inventory()["version"] == 0

        id = user.ask("inventory/sync")
        lab.wait_for(id, "processing")
        seen = []
        while lab.operation(id)["status"] != "succeeded":
            seen.append(user.inventory()["version"])
            time.sleep(0.05)
        time.sleep(1)

        assert user.inventory()["version"] == 1
        assert len(seen) > 10
        assert set(seen[:-3]) == {0}
        lab.crash_at("worker-inventory", "")

    def test_is_not_undone_by_a_reader_that_loaded_before_it(self, lab, row, new_peer):
        reader, writer = new_peer(), new_peer()
        row(seconds=1.0)
        slow = reader.begin(do="read", id=ID)
        eventually(lambda: loads(lab), what="a load")
        row(seconds=0.0)
        writer.write(1)

        assert values(reader.reads(slow)) == [0]
        assert values(reader.read() + writer.read()) == [1, 1]

    def test_that_does_not_come_leaves_the_old_value_cached(self, lab, row, new_peer):
        reader, writer = new_peer(), new_peer()
        reader.read()

        writer.write(1, hold=0.1, end="rollback")

        assert values(reader.read(times=3)) == [0, 0, 0]
        assert loads(lab) == 1

    def test_is_told_by_the_relay_if_its_process_dies(self, lab, row, new_peer):
        reader, writer = new_peer(), new_peer()
        reader.read()
        writer.begin(do="write", id=ID, value=1, end="die")
        eventually(lambda: not _lives(writer), what="the end of the writer")

        # Its row is due after a period, and found within another.
        eventually(
            lambda: values(reader.read()) == [1],
            within=2 * RELAY_PERIOD_SECONDS + MARGIN_SECONDS,
            what="the new value",
        )

    def test_is_seen_within_a_second_in_a_hundred_interleavings(self, row, new_peer):
        readers, writer = [new_peer(soft_seconds=0.05, jitter=1.0) for _ in range(2)], new_peer()
        dice = random.Random(21)
        row(seconds=0.02)
        under_way = [reader.begin(do="read", id=ID, threads=4, times=150, pause=0.06) for reader in readers]
        committed_at = {value: writer.write(value, hold=dice.uniform(0, 0.02)) for value in range(1, 101)}
        reads = [seen for reader, each in zip(readers, under_way, strict=True) for seen in reader.reads(each)]

        def least(at):
            """Give the last value that was committed a second before."""
            return max((value for value, done_at in committed_at.items() if done_at + 1 < at), default=0)

        assert len(reads) == 1_200
        assert max(values(reads)) > 50, "the readers were over before the writer"
        assert [seen for seen in reads if seen[2] < least(seen[0])] == []


def _lives(peer):
    return peer._process.poll() is None


class TestStampede:
    """C22."""

    def test_over_http_on_what_is_not_cached_loads_it_once(self, lab):
        user, before = lab.new_user(), _rebuilt(lab)
        held = threading.Event()

        def hold_the_table():
            """Let whoever loads wait a second."""
            with lab.database.transaction():
                lab.database.execute("LOCK TABLE inventory_inventoryitem IN ACCESS EXCLUSIVE MODE")
                held.set()
                time.sleep(1)

        with ThreadPoolExecutor(51) as threads:
            holding = threads.submit(hold_the_table)
            held.wait(5)
            answers = list(threads.map(_get, [user] * 50))
            holding.result()

        assert {answer.status_code for answer in answers} == {200}
        assert _rebuilt(lab) - before == 1

    def test_of_two_hundred_in_four_processes_loads_once(self, lab, row, new_peer):
        peers = [new_peer() for _ in range(4)]
        row(seconds=1.0)
        for peer in peers:
            peer.wait_until_ready()

        under_way = [peer.begin(do="read", id=ID, threads=50) for peer in peers]
        seen = [each for peer, future in zip(peers, under_way, strict=True) for each in peer.reads(future)]

        assert values(seen) == [0] * 200
        assert loads(lab) == 1

    def test_whose_leader_is_killed_loads_twice(self, lab, row, new_peer):
        peers = [new_peer() for _ in range(4)]
        row(seconds=1.0)
        for peer in peers:
            peer.wait_until_ready()
        under_way = {peer: peer.begin(do="read", id=ID, threads=50) for peer in peers}
        eventually(lambda: loads(lab), what="a leader")
        leader = next(peer for peer in peers if peer.pid == lab.rows("SELECT pid FROM cache_loads")[0]["pid"])

        leader.kill()
        killed_at = time.time()
        seen = [each for peer in peers if peer is not leader for each in peer.reads(under_way[peer])]

        assert values(seen) == [0] * 150
        assert loads(lab) == 2
        assert time.time() - killed_at < LEAD_SECONDS + 1 + 1  # the lead ends, somebody takes it, and loads

    def test_on_what_is_stale_waits_for_nobody(self, lab, row, new_peer):
        peers = [new_peer(soft_seconds=0.1, jitter=0.0) for _ in range(2)]
        for peer in peers:
            peer.read()
        before = loads(lab)
        row(value=1, seconds=1.0)
        time.sleep(0.2)

        under_way = [peer.begin(do="read", id=ID, threads=25) for peer in peers]
        seen = [each for peer, future in zip(peers, under_way, strict=True) for each in peer.reads(future)]
        alone = peers[0].read(times=200, pause=0.002)  # while the rebuild goes on

        assert set(values(seen) + values(alone[:-1])) == {0}
        assert max(seconds for _, seconds, _ in seen) < 0.1
        assert statistics.quantiles([seconds for _, seconds, _ in alone], n=100)[98] < 0.02
        assert loads(lab) == before + 1
        row(seconds=0.0)
        eventually(lambda: values(peers[1].read()) == [1], within=2, what="the new value")

    def test_is_not_kept_from_the_new_value_by_a_killed_refresher(self, lab, row, new_peer):
        refresher, reader = (new_peer(soft_seconds=0.1, jitter=0.0) for _ in range(2))
        refresher.read()
        row(value=1, seconds=1.0)
        time.sleep(0.2)
        assert values(refresher.read()) == [0]
        eventually(lambda: loads(lab) == 2, what="a refresh")

        refresher.kill()
        row(seconds=0.0)

        assert values(reader.read()) == [0]
        eventually(lambda: values(reader.read()) == [1], within=LEAD_SECONDS + 1, what="the new value")

    def test_of_what_cannot_be_loaded_tries_once_a_while_and_says_so(self, lab, row, new_peer):
        kept = 2.0
        reader = new_peer(soft_seconds=0.1, ttl_seconds=kept, absent_seconds=0.1, jitter=0.0)
        reader.read()
        cached_at = time.time()
        row(fails=True)
        seen = reader.read(threads=5, times=200, pause=0.06)

        stale = [value for at, _, value in seen if at < cached_at + kept - 0.1]
        gone = [value for at, _, value in seen if at > cached_at + kept + 0.1]
        assert set(stale) == {0}
        assert gone
        assert all(str(value).startswith("unavailable for ") for value in gone)
        assert loads(lab) - 1 <= 1 + (time.time() - cached_at) / COOL_SECONDS

    def test_of_what_cannot_be_loaded_is_told_the_client_as_503(self, lab):
        user = lab.new_user()
        lab.database.execute("ALTER TABLE inventory_inventoryitem RENAME TO away")
        try:
            answers = [_get(user) for _ in range(5)]
        finally:
            lab.database.execute("ALTER TABLE away RENAME TO inventory_inventoryitem")

        assert {answer.status_code for answer in answers} == {503}
        assert {answer.json()["type"].rpartition("#")[2] for answer in answers} == {"temporarily-unavailable"}
        assert all(0 < int(answer.headers["Retry-After"]) <= COOL_SECONDS + 1 for answer in answers)
        eventually(lambda: _get(user).status_code == 200, within=COOL_SECONDS + 2, what="an answer")


def _get(user):
    with httpx.Client(headers=user.client.headers, base_url=user.client.base_url, trust_env=False) as client:
        return client.get("/v1/inventory", timeout=20)


def _rebuilt(lab):
    return lab.counted("ops_cache_singleflight_total", cache="inventory:view", role="leader")
