"""A process is told to end. It starts nothing, loses nothing, and is gone within its grace period."""

import re
import signal
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psutil
import pytest

from deploy.local import procfile
from tests.faults.lab import RELAY_PERIOD_SECONDS, eventually
from tests.faults.scenarios import worker_of
from tests.faults.stubborn import STUBBORN, ask, begin

pytestmark = [pytest.mark.process, pytest.mark.embedded, pytest.mark.broker]

# Celery itself takes two seconds to end when it has nothing to do, and six on a machine that has much to do.
GRACE_SECONDS, MARGIN_SECONDS = 10.0, 7.5
LEASE_SECONDS = 30.0  # so that whoever waits for a lease is seen to
TAKEOVER_SECONDS = 4.0  # a message, a claim and a call
SHORT_SECONDS, LONG_SECONDS = 2.0, 5.0
BUSY_MACHINE_SECONDS = 4.0
AT_ONCE = timedelta(seconds=0.5)  # until a signal is heard by a busy process
LOCKS = 2  # Redis database
HELD = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event = 'PgSleep'"""
INTERRUPTED = [
    ("", "queued", "accepted"),
    ("queued", "processing", ""),
    ("processing", "queued", "interrupted"),
    ("queued", "processing", ""),
]


@pytest.fixture(scope="module")
def lab(new_lab):
    env = {
        **STUBBORN,
        "WORKER_SLOTS": "2",
        "WEB_WORKERS": "1",
        "LEASE_SECONDS": str(LEASE_SECONDS),
        "LOCK_POLL_SECONDS": str(LEASE_SECONDS),
        "GRACE_SECONDS": str(GRACE_SECONDS),
        "GRACE_MARGIN_SECONDS": str(MARGIN_SECONDS),
    }
    return new_lab("web", "worker-inventory", "worker-inventory#2", "relay", env=env)


@pytest.fixture(autouse=True)
def complete(lab):
    """Begin each test with every process running."""
    ended = [process for process in lab.stack.processes.values() if not process.is_alive()]
    for process in ended:
        process.launch()
    for process in ended:
        process.wait_until_ready()


def tell(process, with_signal=signal.SIGTERM, *, whom="parent", times=1):
    """Tell it to end, wait until it has, within its grace period, and give the exit code."""
    for _ in range(times):
        process.kill(with_signal, whom=whom)
        time.sleep(0.2 * (times - 1))
    eventually(lambda: not process.is_alive(), within=GRACE_SECONDS, what=f"the end of {process.name}")
    return process.exit_code()


def assert_handed_on(lab, stay):
    """Another has it at once: not after the lease, with the attempt given back, and one of them finishes."""
    operation = lab.wait_final(stay.id)
    assert lab.history(stay.id) == [*INTERRUPTED, ("processing", "succeeded", "")]
    handed_back, taken = lab.moves(stay.id)[2:4]
    assert (taken["at"] - handed_back["at"]).total_seconds() < TAKEOVER_SECONDS
    assert (operation["runs"], operation["attempt"], operation["interruptions"]) == (2, 1, 1)
    assert lab.effects.count(f"{stay.ref}-left") == 1


def steps_of(lab, stay):
    return lab.rows("SELECT run FROM operations_effect WHERE operation_id = %s", stay.id)


def assert_nothing_left(lab):
    """Whatever was told to end, it left no lock and no message."""
    eventually(lambda: lab.unacknowledged() == 0, what="every message to be acknowledged")
    with lab.broker as broker:
        assert not [name for name in broker.keys("*") if "stubborn" in name], "a message is left"
        broker.select(LOCKS)
        assert broker.keys("*") == [], "a lock is left"


class TestWorker:
    """C04: started as the Procfile says."""

    def test_is_not_the_process_that_hears_the_signal(self, lab):
        programs = {name: psutil.Process(process.pid).name() for name, process in lab.stack.processes.items()}

        assert not [name for name, program in programs.items() if program in ("sh", "bash", "dash")]

    @pytest.mark.parametrize("name", procfile.commands())
    def test_has_no_shell_above_it(self, name):
        """What the shell runs last, it becomes."""
        last = re.split(r"&&|\|\||;|\|", procfile.commands()[name])[-1].split()

        assert "exec" in [word for word in last if "=" not in word][:1]

    def test_cuts_short_work_off_or_begins_more(self, lab):
        """C04 part 1."""
        stay = begin(lab, "sleep", seconds=SHORT_SECONDS)
        worker = worker_of(lab, stay.id)
        children = {child.pid for child in worker.children()}

        worker.kill(signal.SIGTERM)
        told_at = lab.rows("SELECT clock_timestamp() AS now")[0]["now"]
        more = [ask(lab, "sleep", seconds=0) for _ in range(4)]

        eventually(lambda: not worker.is_alive(), within=GRACE_SECONDS, what="the end of the worker")
        assert worker.exit_code() == 0
        for each in [stay, *more]:
            operation = lab.wait_final(each.id)
            assert (operation["status"], operation["runs"], operation["attempt"]) == ("succeeded", 1, 1)
            assert lab.effects.count(each.ref) == 1
        claims = [move for each in more for move in lab.moves(each.id) if move["to_status"] == "processing"]
        late = {int(claim["actor"].rpartition("/")[2]) for claim in claims if claim["at"] > told_at + AT_ONCE}
        assert not children & late, "it began more work"
        assert_nothing_left(lab)

    @pytest.mark.parametrize("how", ["steps", "python"])
    def test_waits_for_long_work_until_it_is_killed(self, lab, how):
        """C04 part 2: told twice, in a run that looks whether to go on, and in one that never does."""
        stay = begin(lab, how, seconds=LONG_SECONDS)
        eventually(lambda: how != "steps" or steps_of(lab, stay), what="a step")

        exit_code = tell(worker_of(lab, stay.id), times=2)

        assert exit_code == 0
        assert_handed_on(lab, stay)
        assert {step["run"] for step in steps_of(lab, stay)} == ({1, 2} if how == "steps" else set())
        assert_nothing_left(lab)

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT])
    def test_loses_its_children_to_a_signal_for_all(self, lab, number):
        """C04 part 2: from a terminal, or from an init that tells the whole group."""
        stay = begin(lab, "sleep", seconds=LONG_SECONDS)

        exit_code = tell(worker_of(lab, stay.id), number, whom="group")

        assert exit_code == 0
        assert_handed_on(lab, stay)
        assert_nothing_left(lab)

    def test_is_killed_for_waiting_with_nothing_to_do(self, lab):
        lab.workers[0].wait_until_ready()
        began = time.monotonic()

        assert tell(lab.workers[0]) == 0

        assert time.monotonic() - began < MARGIN_SECONDS

    def test_takes_a_message_along_when_it_is_told_while_it_starts(self, lab):
        worker, other = lab.workers
        worker.stop()
        other.wait_until_ready()
        ids = []

        for moment in ("", "[tasks]", "Connected to"):  # importing; about to fork; about to take messages
            worker.launch()
            ids += [lab.new_user().ask("probe/effect", {"ref": uuid.uuid4().hex}) for _ in range(3)]
            eventually(lambda at=moment: at in worker.output(), what=moment)
            worker.kill(signal.SIGTERM)
            eventually(lambda: not worker.is_alive(), within=GRACE_SECONDS, what="the end of the worker")
            assert worker.exit_code() in (0, -signal.SIGTERM)  # before there is a handler, the kernel acts

        for id in ids:
            operation = lab.wait_final(id, within=TAKEOVER_SECONDS)
            assert (operation["status"], operation["runs"]) == ("succeeded", 1)

    def test_keeps_a_child_that_was_told_alone_and_gives_it_work(self, lab):
        """A child told by hand ends after its run, and its successor works."""
        stay = begin(lab, "sleep", seconds=LONG_SECONDS)
        child = int(lab.operation(stay.id)["claimed_by"].rpartition("/")[2])

        psutil.Process(child).terminate()

        assert_handed_on(lab, stay)
        eventually(lambda: not psutil.pid_exists(child), what="the end of the child")
        assert all(worker.is_alive() for worker in lab.workers)


class TestRelay:
    def test_is_killed_in_its_sleep(self, lab):
        relay = lab.stack.process("relay")
        relay.wait_until_ready()
        began = time.monotonic()

        assert tell(relay) == 0

        assert time.monotonic() - began < RELAY_PERIOD_SECONDS + BUSY_MACHINE_SECONDS
        assert "relay.stopped" in relay.output()


class TestWeb:
    def test_drops_the_requests_it_is_answering(self, lab):
        web = lab.stack.process("web")
        lab.let_accepts("PERFORM pg_sleep(1);")
        user, ref = lab.new_user(), uuid.uuid4().hex
        with ThreadPoolExecutor(4) as threads:
            asked = [threads.submit(user.post, "probe/effect", {"ref": ref}) for _ in range(4)]
            eventually(lambda: lab.rows(HELD)[0]["count"] == 4, what="four requests under way")

            exit_code = tell(web)

        lab.let_accepts("")
        assert exit_code == 0
        assert [answer.result().status_code for answer in asked] == [202] * 4
        for answer in asked:
            assert lab.wait_final(answer.result().json()["operation_id"])["status"] == "succeeded"
