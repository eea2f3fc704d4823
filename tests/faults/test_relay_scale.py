"""Three relays beside a large backlog: what waits is not doubled, whoever dies, and whatever hangs."""

import base64
import json
import signal
import time

import pytest

from tasks.backlog import HANDFUL
from tests.faults.envelopes import body, envelope
from tests.faults.lab import LONG_SECONDS, RELAY_PERIOD_SECONDS, eventually

pytestmark = [pytest.mark.process, pytest.mark.embedded]

QUEUE = "probe.effect"
MANY = 50_000
BATCH = 100
PLENTY = 25  # the settings' own
THREE_PERIODS = 3 * RELAY_PERIOD_SECONDS + 1
RELAYS = ("relay", "relay#2", "relay#3")
ALL_PUBLISHED = str(2 * MANY)  # as many messages are plenty: so each operation gets one
FILL = """
    WITH made AS (
        INSERT INTO operations_operation
            (id, job_type, schema_version, owner_id, source, status, reason, step, runs, attempt,
             max_attempts, interruptions, waits, replays, run_at, deadline_at, resource, waiting_for,
             idempotency_key, request_id, correlation_id, claimed_by, published_at, version, depth)
        SELECT gen_random_uuid(), %s, 1, %s, 'api', 'queued', 'accepted', '', 0, 0,
            3, 0, 0, 0, now() - interval '1 hour', now() + interval '1 hour', '', '', '', '', '', '', %s, 1, 0
        FROM generate_series(1, %s) RETURNING id),
    data AS (
        INSERT INTO operations_operationdata (operation_id, payload) SELECT id, %s FROM made)
    SELECT id FROM made"""
UNDONE = "SELECT 1 FROM operations_operation WHERE status <> 'succeeded' LIMIT 1"
LONGEST_TRANSACTION = """
    SELECT COALESCE(max(EXTRACT(epoch FROM clock_timestamp() - xact_start)), 0)::float8 AS seconds
    FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"""


@pytest.fixture
def new_relays(new_lab):
    """Give a function that starts three relays, and a worker that is killed until it is wanted."""

    def new(**env):
        lab = new_lab("web", "worker-inventory", *RELAYS, env={"RELAY_BATCH": str(BATCH), **env})
        lab.kill_workers()
        return lab

    return new


def fill(lab, count, *, published=None):
    """Make operations that wait, and give their ids. `published` is when a message was sent for each."""
    user = lab.new_user()
    rows = lab.rows(FILL, QUEUE, user.id, published, count, json.dumps({"ref": "-"}))
    lab.database.execute("ANALYZE operations_operation")
    return [str(row["id"]) for row in rows]


def send(lab, ids):
    """Put a message about each operation into the broker."""
    with lab.broker as broker:
        for first in range(0, len(ids), 1_000):
            broker.lpush(
                f"{lab.stack.name}:{QUEUE}", *(envelope(body(id)) for id in ids[first : first + 1_000])
            )


def named(lab):
    """Give the operations that the messages name, one for each message."""
    return [json.loads(base64.b64decode(message["body"]))[0][0] for message in lab.messages(QUEUE)]


def lengths(lab, *, seconds):
    """Watch how long the queue is."""
    seen, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        seen.append(lab.queue_length(QUEUE))
        time.sleep(0.02)
    return seen


def signal_relays(lab, number):
    for name in RELAYS:
        lab.stack.process(name).kill(number)


class TestHonestBacklog:
    def test_is_published_again_by_each_relay(self, new_relays):
        """Every operation has a message, an hour old; then a hundred and fifty messages are lost."""
        lab = new_relays()
        signal_relays(lab, signal.SIGSTOP)
        send(lab, fill(lab, MANY, published="2026-01-01T00:00:00Z"))
        signal_relays(lab, signal.SIGCONT)

        assert set(lengths(lab, seconds=THREE_PERIODS)) == {MANY}

        with lab.broker as broker:
            broker.ltrim(f"{lab.stack.name}:{QUEUE}", 0, MANY - 151)
        eventually(lambda: lab.queue_length(QUEUE) >= MANY, within=LONG_SECONDS, what="what was lost")
        assert max(lengths(lab, seconds=THREE_PERIODS)) == MANY

    def test_is_worked_off_with_few_messages(self, new_relays):
        lab = new_relays()
        fill(lab, MANY)
        [worker] = lab.workers
        worker.start()

        seen = lengths(lab, seconds=THREE_PERIODS)

        # Each relay that finds it empty sends a batch, and each child publishes what is left of its handful.
        assert 0 < max(seen) <= len(RELAYS) * BATCH + 2 * (PLENTY + HANDFUL)
        done = lab.rows("SELECT count(*) AS n FROM operations_operation WHERE status = 'succeeded'")
        doubled = lab.rows("SELECT count(*) AS n FROM operations_operation WHERE runs > 1")
        assert done[0]["n"] > 0
        assert doubled[0]["n"] == 0


class TestKilled:
    def test_in_a_batch_leaves_it_to_the_others_which_double_nothing(self, new_relays):
        lab = new_relays(PLENTY_OF_MESSAGES=ALL_PUBLISHED, RELAY_BATCH="20")
        lab.crash_at("relay#2", "relay.marked=kill")
        dying, others = lab.stack.process("relay#2"), [lab.stack.process(f"relay{n}") for n in ("", "#3")]
        for relay in others:
            relay.kill(signal.SIGSTOP)  # or they may have done it all before its round begins
        try:
            ids = fill(lab, 20 * 20)
            eventually(lambda: not dying.is_alive(), what="the end of a relay inside a batch")
        finally:
            for relay in others:
                relay.kill(signal.SIGCONT)
        eventually(lambda: lab.queue_length(QUEUE) >= len(ids), what="as many messages as operations")
        assert max(lengths(lab, seconds=THREE_PERIODS)) == len(ids)

        # Which twenty have none shows when the others are done: those that are sent first are the oldest.
        lab.worker.start()
        eventually(lambda: not lab.rows(UNDONE), within=3 * LONG_SECONDS, what="all done")
        assert lab.rows("SELECT max(runs) AS most FROM operations_operation")[0]["most"] == 1
        assert dying.exit_code() == -signal.SIGKILL


class TestBroker:
    def test_hangs_inside_a_batch(self, new_relays):
        lab = new_relays(PLENTY_OF_MESSAGES=ALL_PUBLISHED)
        ids = fill(lab, 40 * BATCH)
        eventually(lambda: lab.queue_length(QUEUE) > BATCH, what="a batch that is being sent")

        lab.stack.servers.valkey.pause()
        began, longest = time.monotonic(), 0.0
        while time.monotonic() - began < 4:
            longest = max(longest, lab.rows(LONGEST_TRANSACTION)[0]["seconds"])
            time.sleep(0.02)
        seen = lab.rows(
            "SELECT count(*) AS n FROM operations_workernode WHERE kind = 'relay'"
            " AND last_seen_at > clock_timestamp() - interval '3 s'"
        )
        lab.stack.servers.valkey.resume()

        assert longest < 1, "a transaction was open while the broker was asked"
        assert seen[0]["n"] == len(RELAYS), "a relay hangs with its broker"
        eventually(lambda: set(named(lab)) == set(ids), what="a message for each")
        time.sleep(THREE_PERIODS)
        # What was sent and not answered for is sent again: one message a relay and a try.
        assert len(ids) <= lab.queue_length(QUEUE) <= len(ids) + BATCH

    def test_loses_everything_and_gets_it_back_at_once(self, new_relays):
        """The epoch says so: nobody waits whether a message is only late."""
        lab = new_relays(PLENTY_OF_MESSAGES=ALL_PUBLISHED, REPUBLISH_AFTER_SECONDS="60")
        ids = fill(lab, 5 * BATCH)
        eventually(lambda: lab.queue_length(QUEUE) == len(ids), what="a message for each")

        lab.flush_broker()

        eventually(lambda: lab.queue_length(QUEUE) >= len(ids), within=10, what="a message for each")
        time.sleep(THREE_PERIODS)
        assert sorted(named(lab)) == sorted(ids)
