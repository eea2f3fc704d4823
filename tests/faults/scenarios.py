"""What must hold under a fault, as functions, for the tests of the product and the tests of its guards.

Each raises AssertionError where the promise is broken.
"""

import signal
import uuid
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from deploy.local.process import Process
from tests.faults.lab import RECOVERY_SECONDS, Lab, User, eventually


def survive_an_emptied_broker(lab: Lab, *, count: int) -> list[str]:
    """Accept operations while no worker runs, empty the broker, start the workers. Gives the ids."""
    user = lab.new_user()
    refs = [uuid.uuid4().hex for _ in range(count)]
    lab.kill_workers()
    before = lab.counted("ops_redispatched_total")
    ids = [user.ask("probe/effect", {"ref": ref}) for ref in refs]

    lab.flush_broker()
    eventually(
        lambda: lab.queue_length("probe.effect") == count,
        within=RECOVERY_SECONDS,
        what="the relay to publish what the broker lost",
    )
    assert lab.counted("ops_redispatched_total") - before == count
    for worker in lab.workers:
        worker.start()

    for id in ids:
        operation = lab.wait_final(id, within=RECOVERY_SECONDS)
        assert (operation["status"], operation["runs"]) == ("succeeded", 1)
    assert [lab.effects.count(ref) for ref in refs] == [1] * count
    return ids


def refuse_a_worker_that_slept(lab: Lab) -> None:
    """Stop a worker until its run was given to another, wake it, and look whose result counts.

    The second run is still at work when the first wakes: the row says `processing`, and nothing but the token
    tells the two apart.
    """
    ref = uuid.uuid4().hex
    id = lab.new_user().ask("probe/sleep", {"ref": ref, "seconds": 3})
    lab.wait_effects(ref, 1)
    sleeper = worker_of(lab, id)
    sleeper.kill(signal.SIGSTOP, whom="group")
    lab.wait_effects(ref, 2)
    second = lab.operation(id)["claimed_by"]

    sleeper.kill(signal.SIGCONT, whom="group")

    operation = lab.wait_final(id, within=RECOVERY_SECONDS)
    finish = lab.moves(id)[-1]
    assert operation["result"] == {"run": 2}, "the result is that of a run whose claim was lost"
    assert (finish["run"], finish["actor"]) == (2, second), (
        "another than the holder of the claim has finished"
    )
    assert [move[2] for move in lab.history(id)] == ["accepted", "", "worker_lost", "", ""]


def worker_of(lab: Lab, id: str) -> Process:
    """Find the worker one of whose children has claimed the operation."""
    pid = int(lab.operation(id)["claimed_by"].rpartition("/")[2])
    return next(worker for worker in lab.workers if pid in {child.pid for child in worker.children()})


def answer_equal_requests_with_one_operation(lab: Lab, *, count: int) -> str:
    """Send one request so many times at once, and give the id of its operation."""
    user, key, ref = lab.new_user(), uuid.uuid4().hex, uuid.uuid4().hex

    answers = at_once([lambda: user.post("probe/effect", {"ref": ref}, key=key)] * count)

    assert {answer.status_code for answer in answers} <= {200, 202, 409}
    assert all(answer.headers["Retry-After"] for answer in answers if answer.status_code == 409)
    ids = {answer.json()["operation_id"] for answer in answers if answer.status_code != 409}
    rows = lab.rows("SELECT id FROM operations_operation WHERE idempotency_key = %s", key)
    assert (len(ids), len(rows)) == (1, 1), f"{count} equal requests made {len(rows)} operations"
    return ids.pop()


def at_once(calls):
    """Make all calls at the same moment, each in a thread of its own, and give what they return."""
    barrier = Barrier(len(calls))

    def call(each):
        barrier.wait()
        return each()

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(call, calls))


def hold_first(lab: Lab, user: User, path: str, body: dict, *, key: str, threads: ThreadPoolExecutor):
    """Send a request that is held before its commit, and wait until it has inserted its row."""
    first = threads.submit(user.post, path, body, key=key)
    held = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
    eventually(lambda: lab.rows(held), what="a request that is held before its commit")
    return first
