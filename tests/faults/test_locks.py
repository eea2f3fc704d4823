"""C19 and C20: a lock that is waited for, kept, lost and taken by another, by real workers."""

import signal
import subprocess
import time
import uuid

import pytest

from deploy.local import procfile
from tests.faults.lab import LEASE_SECONDS, LONG_SECONDS, RECOVERY_SECONDS, eventually
from tests.faults.lines import LINES, lock_key, locks, prepare, written
from tests.faults.scenarios import worker_of

pytestmark = [pytest.mark.process, pytest.mark.embedded]

BEAT_SECONDS = 1.0  # as in LAB; the lock is renewed with the lease
HELD_SECONDS = 5.5 * BEAT_SECONDS  # five renewals


@pytest.fixture(scope="module")
def lab(new_lab):
    lab = new_lab("web", "worker-inventory", "worker-inventory#2", "relay", env=LINES)
    return prepare(lab)


class Rivals:
    """Operations that want one resource. Each tells the stub when its call begins."""

    def __init__(self, lab):
        self.lab, self.what = lab, uuid.uuid4().hex
        self.key = lock_key(lab, f"probe:hold:{self.what}")
        self.user = lab.new_user()

    def ask(self, **how):
        """Ask for an operation and give its id, which is also the name of its effects."""
        ref = uuid.uuid4().hex
        return self.user.ask("probe/hold", {"ref": ref, "what": self.what, **how}), ref

    def begin(self, **how):
        """Ask for one and wait until its call has begun."""
        id, ref = self.ask(**how)
        self.lab.wait_effects(ref)
        return id

    def wrote(self):
        return [(row["operation_id"], row["run"]) for row in written(self.lab, self.what)]

    def fences(self):
        return [row["fence"] for row in written(self.lab, self.what)]


@pytest.fixture
def rivals(lab):
    return Rivals(lab)


@pytest.fixture
def store(lab):
    with locks(lab) as store:
        yield store


class TestWaiting:
    """C19."""

    def test_works_without_the_lock_when_the_wait_is_over(self, lab, rivals, store):
        """Parts 1 and 2: who waits looks every second, and the holder's lock always has an end."""
        first = rivals.begin(seconds=HELD_SECONDS)
        held_until = time.monotonic() + HELD_SECONDS - 0.5
        second, ref = rivals.ask()

        waiting = lab.wait_for(second, "retry_scheduled")
        ends = []
        while time.monotonic() < held_until:
            ends.append(store.pttl(rivals.key))
            time.sleep(0.1)
        assert (waiting["reason"], waiting["runs"], waiting["attempt"]) == ("lock_contended", 0, 0)
        assert waiting["waiting_for"].startswith(f"lock probe:hold:{rivals.what} held by {first} on ")
        assert lab.operation(second)["waits"] > 1, "it looked once"
        assert lab.effects.count(ref) == 0, "it began while another held the lock"
        assert len(ends) > 20
        assert min(ends) > 0, "at some moment the lock had no end, or was gone"
        assert max(ends) <= LEASE_SECONDS * 1000

        lab.wait_final(first)
        operation = lab.wait_final(second, within=RECOVERY_SECONDS)
        assert (operation["status"], operation["runs"], operation["attempt"]) == ("succeeded", 1, 1)
        assert rivals.wrote() == [(first, 1), (second, 1)]
        assert store.exists(rivals.key) == 0

    def test_does_not_notice_that_the_lock_is_gone(self, lab, rivals, store):
        """Part 4: the key is deleted under the holder."""
        id = rivals.begin(seconds=2 * BEAT_SECONDS)
        lost_before = lab.counted("ops_lock_lost_total", lock="probe.hold", cause="expired")

        assert store.delete(rivals.key) == 1
        eventually(
            lambda: lab.counted("ops_lock_lost_total", lock="probe.hold", cause="expired") > lost_before,
            within=BEAT_SECONDS + 1.0,  # beats are looked for twice a second
            what="the holder to notice that its lock is gone",
        )

        operation = lab.wait_final(id)
        assert rivals.wrote() == [(id, 2)], "what the first run wrote was committed"
        assert (operation["runs"], operation["attempt"], operation["interruptions"]) == (2, 1, 1)
        assert [move[2] for move in lab.history(id)] == ["accepted", "", "interrupted", "", ""]


NONSENSE = [
    ("worker-inventory", "LOCK_TTL_SECONDS", "0", "must outlive a beat"),
    ("worker-inventory", "LOCK_TTL_SECONDS", "-1", "must outlive a beat"),
    ("worker-inventory", "HEARTBEAT_SECONDS", "0", "is shorter than three beats"),
    ("relay", "HEARTBEAT_SECONDS", "-0.5", "is shorter than three beats"),
    ("relay", "LOCK_TTL_SECONDS", "0", "must outlive a beat"),
]


class TestStartUp:
    """C19."""

    def test_takes_a_lock_that_ends_at_once_or_is_never_renewed(self, lab):
        """Part 3: neither a worker nor a relay starts with it."""
        started = [
            (start(lab, process, {name: value}), refusal) for process, name, value, refusal in NONSENSE
        ]

        for process, refusal in started:
            output, code = ended(process)
            assert refusal in output
            assert code != 0

    def test_serves_what_no_worker_may_work_on(self, lab):
        output, code = ended(start(lab, "web", {"HEARTBEAT_SECONDS": "0", "PORT": "0"}))

        assert "(teguh.E001) a lease of 4.0 s is shorter than three beats of 0.0 s" in output
        assert code != 0


def start(lab, process, settings):
    """Start another process of the Procfile, which ends by itself."""
    return subprocess.Popen(
        ["sh", "-c", procfile.commands()[process]],
        env={**lab.stack.env, **settings},
        cwd=procfile.ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(process):
    try:
        output, _ = process.communicate(timeout=LONG_SECONDS)
    finally:
        process.kill()
    return output, process.returncode


class TestLost:
    """C20."""

    def test_lets_an_overdue_holder_free_anothers_lock(self, lab, rivals, store):
        """Part 1: it is stopped for longer than its lock lasts, and its work was done when it wakes."""
        first = rivals.begin(seconds=1)
        sleeper = worker_of(lab, first)
        sleeper.kill(signal.SIGSTOP, whom="group")
        stopped_at = time.monotonic()
        second, ref = rivals.ask(seconds=LEASE_SECONDS)
        lab.wait_effects(ref)
        assert time.monotonic() - stopped_at < RECOVERY_SECONDS
        taken = store.get(rivals.key)
        assert second in taken

        sleeper.kill(signal.SIGCONT, whom="group")

        eventually(
            lambda: lab.operation(first)["status"] == "retry_scheduled",
            what="the first to wait for the second",
        )
        time.sleep(1)  # what the sleeper does when it wakes, it does at once
        assert store.get(rivals.key) == taken
        assert [lab.wait_final(id)["status"] for id in (second, first)] == ["succeeded"] * 2
        assert rivals.wrote() == [(second, 1), (first, 2)], "what the sleeper wrote was committed"
        assert rivals.fences() == sorted(set(rivals.fences()))

    def test_hides_the_error_of_a_run_that_had_lost_it(self, lab, rivals, store):
        """Part 2: the loss is told beside the error, and another's lock is left alone."""
        id = rivals.begin(seconds=2.5 * BEAT_SECONDS, fail=True)
        lost_before = lab.counted("ops_lock_lost_total", lock="probe.hold")
        store.set(rivals.key, f"{uuid.uuid4()}|{uuid.uuid4()}|somebody/1|2026-01-01T00:00:00Z", px=20_000)
        foreign = store.get(rivals.key)

        operation = lab.wait_final(id)

        assert (operation["status"], operation["reason"]) == ("failed_permanent", "bug")
        assert operation["error"]["class"] == "ValueError"
        assert operation["error"]["message"] == "a probe was told to fail"
        assert operation["error"]["lock_lost"] is True
        [letter] = lab.rows("SELECT * FROM operations_deadletter WHERE operation_id = %s", id)
        assert (letter["error_class"], letter["lock_lost"]) == ("ValueError", True)
        assert lab.counted("ops_lock_lost_total", lock="probe.hold") > lost_before
        [told] = [line for line in logged(lab, "lock.lost") if id in line]
        assert '"level": "WARNING"' in told
        assert store.get(rivals.key) == foreign
        store.delete(rivals.key)

    def test_lets_two_holders_write_after_the_store_was_emptied(self, lab, rivals, store):
        """Part 3: the fence is in the database, where nobody has emptied it."""
        first = rivals.begin(seconds=1.5 * BEAT_SECONDS)

        store.flushdb()
        second = rivals.begin(seconds=0.1)
        lab.wait_final(second)

        operation = lab.wait_final(first)
        fence = {row["operation_id"]: row["fence"] for row in written(lab, rivals.what)}
        assert rivals.wrote() == [(second, 1), (first, 2)], "the first run wrote with an old fence"
        # The first claim raised it to 1, the second operation's to 2, the first's second run to 3.
        assert fence == {second: 2, first: 3}
        assert (operation["attempt"], operation["interruptions"]) == (1, 1)


def logged(lab, event):
    """Give the log lines of all workers that tell of an event."""
    lines = "".join(worker.log.read_text() for worker in lab.workers).splitlines()
    return [line for line in lines if f'"event": "{event}"' in line]
