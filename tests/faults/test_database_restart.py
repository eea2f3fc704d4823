"""PostgreSQL crashes and comes back under load: every process goes on, and none has to be started again."""

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import httpx
import pytest

from tests.faults.lab import LONG_SECONDS, eventually

pytestmark = [pytest.mark.process, pytest.mark.embedded]

AWAY_SECONDS = 2.0
PAUSE_SECONDS = 0.05  # between two requests of one client
GOOD_SECONDS = 10.0  # the relay's pauses double from one second on while the database is away


@pytest.fixture(scope="module")
def lab(new_lab):
    env = {"CANARY_PERIOD_SECONDS": "1"}
    return new_lab("web", "worker-inventory", "relay", env=env, own_postgres=True)


def pids(lab):
    """Give all processes, children included: the same as before, if none was started again."""
    return {
        name: {process.pid, *(child.pid for child in process.children())}
        for name, process in lab.stack.processes.items()
    }


def keep_asking(user, ref, stop):
    """Ask again and again with a key for each, and repeat until it is accepted; give the ids."""
    ids = []
    while not stop.is_set():
        ids.append(ask(user, "probe/sleep", {"ref": ref, "seconds": 0.01}))
        time.sleep(PAUSE_SECONDS)
    return ids


def ask(user, path, body):
    """Ask until it is accepted, with one key: the first answer over a dead connection is 503."""
    key = uuid.uuid4().hex

    def accepted():
        try:
            answer = user.post(path, body, key=key)
        except httpx.TransportError:
            return None
        return answer.json()["operation_id"] if answer.status_code in {200, 202} else None

    return eventually(accepted, what="an accepted request")


def crash(lab):
    """End PostgreSQL as its machine's end would, and start it again a little later."""
    lab.leave_database()
    lab.stack.servers.postgres.kill()
    time.sleep(AWAY_SECONDS)
    lab.stack.servers.postgres.restart()


class TestRestart:
    def test_is_survived_by_all_without_a_restart_of_theirs(self, lab):
        ref, stop, user = uuid.uuid4().hex, Event(), lab.new_user()
        lab.wait_final(user.ask("probe/sleep", {"ref": ref, "seconds": 0.01}))
        before = pids(lab)

        with ThreadPoolExecutor(2) as threads:
            asking = [threads.submit(keep_asking, user, ref, stop) for _ in range(2)]
            time.sleep(1)
            crash(lab)
            time.sleep(2)
            stop.set()
            ids = [id for each in asking for id in each.result()]

        assert len(ids) > 20
        for id in ids:
            assert lab.wait_final(id, within=LONG_SECONDS)["status"] == "succeeded"
        assert pids(lab) == before

    def test_leaves_no_connection_dead(self, lab):
        """Each child meets its dead connection in its next message, whichever task that is."""
        crash(lab)
        back_at, new = time.monotonic(), lab.new_user()

        for _ in range(8):
            id = ask(new, "probe/effect", {"ref": uuid.uuid4().hex})
            assert lab.wait_final(id, within=GOOD_SECONDS)["status"] == "succeeded"
        failed = ask(new, "probe/fail", {"ref": "-", "kind": "invalid_input", "times": 9, "retry_after": 0})
        lab.wait_final(failed)
        eventually(
            lambda: lab.rows(
                "SELECT 1 FROM operations_deadletter WHERE operation_id = %s AND reported_at IS NOT NULL",
                failed,
            ),
            within=GOOD_SECONDS,
            what="a report",
        )
        eventually(
            lambda: lab.rows(
                "SELECT 1 FROM operations_canary HAVING bool_and(answered_at > now() - interval '3 s')"
            ),
            within=GOOD_SECONDS,
            what="canaries from every queue",
        )
        assert time.monotonic() - back_at < LONG_SECONDS
