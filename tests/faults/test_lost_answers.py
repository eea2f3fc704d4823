"""The database's answer is lost around a COMMIT, so nobody knows what became of it; or the database restarts.

Each time there is one operation, one effect, one finish, and what follows it is done.
"""

import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from deploy.local.proxy import Proxy, Toxic
from deploy.local.servers import DATABASE, Servers
from deploy.local.stack import Stack, unique_name
from tests.faults.lab import LAB, RECOVERY_SECONDS, Lab, eventually
from tests.faults.stubborn import STUBBORN, begin

pytestmark = [pytest.mark.process, pytest.mark.embedded]

BEFORE_AND_AFTER = pytest.mark.parametrize("when", ["before", "after"])
CLAIM = "SET status = 'processing'"
FINISH = "SET status = 'succeeded'"
BURY = "SET status = 'failed_permanent'"
RETRY = "SET status = 'retry_scheduled'"
ACCEPT = "INSERT INTO operations_idempotencyrecord"
STEP = "INSERT INTO operations_effect"
SUCCEEDED = [
    ("", "queued", "accepted"),
    ("queued", "processing", ""),
    ("processing", "succeeded", ""),
]


class ServersBehindProxy(Servers):
    """A PostgreSQL of its own, which clients reach through a proxy."""

    proxy: Proxy

    @property
    def database_url(self) -> str:
        return self.proxy.url(DATABASE)


@pytest.fixture(scope="module")
def servers_behind_proxy():
    with ServersBehindProxy(durable=False) as servers, Proxy(servers.postgres.socket) as servers.proxy:
        yield servers


@pytest.fixture(scope="module")
def lab(servers_behind_proxy, effects, tmp_path_factory):
    stack = Stack(
        tmp_path_factory.mktemp("lab"),
        processes=("web", "worker-inventory", "relay"),
        servers=servers_behind_proxy,
        name=unique_name(),
        env={**LAB, **STUBBORN, "WORKER_SLOTS": "2", "EFFECTS_URL": effects.url},
    )
    with stack:
        lab = Lab(stack, effects)
        yield lab
        lab.close()


@pytest.fixture
def lose(servers_behind_proxy):
    """Give a function that makes the proxy lose a connection, and see afterwards that it has."""
    proxy, wanted = servers_behind_proxy.proxy, []

    def lose(at, when, **more):
        wanted.append(Toxic(at, when, **more))
        proxy.add(wanted[-1])

    yield lose
    assert [toxic for toxic in wanted if toxic.times] == [], "nothing was lost"


def ask(lab, path="probe/effect", **body):
    ref = uuid.uuid4().hex
    return lab.new_user().ask(path, {"ref": ref, **body}), ref


def assert_done_once(lab, id, ref):
    operation = lab.wait_final(id, within=RECOVERY_SECONDS)
    assert lab.history(id) == SUCCEEDED
    assert (operation["runs"], operation["attempt"], operation["result"]) == (1, 1, {"run": 1})
    assert lab.effects.count(ref) == 1
    assert_nothing_owed(lab)


def assert_nothing_owed(lab):
    eventually(lambda: not lab.rows("SELECT id FROM operations_aftercommit"), what="what follows a commit")
    eventually(lambda: lab.unacknowledged() == 0, what="every message to be acknowledged")


def reconnect(lab):
    lab.database.close()
    del lab.database


class TestUnknownOutcome:
    """The connection is cut before the statement reaches the server, or after the server has done it."""

    @BEFORE_AND_AFTER
    def test_of_a_claim_leaves_it_to_nobody(self, lab, lose, when):
        lose(CLAIM, when)

        assert_done_once(lab, *ask(lab))

    @BEFORE_AND_AFTER
    def test_of_a_step_repeats_it(self, lab, lose, when):
        lose("COMMIT", when, within=STEP)

        stay = begin(lab, "steps", seconds=0.5)

        assert_done_once(lab, *stay)
        steps = lab.rows("SELECT step, run FROM operations_effect WHERE operation_id = %s", stay.id)
        assert len({step["step"] for step in steps}) == len(steps) > 1
        assert {step["run"] for step in steps} == {1}

    @BEFORE_AND_AFTER
    @pytest.mark.parametrize("path", ["probe/effect", "stubborn/long"], ids=["free", "locked"])
    def test_of_a_finish_runs_it_again(self, lab, lose, when, path):
        lose("COMMIT", when, within=FINISH)

        body = {"seconds": 0, "how": "sleep", "thing": uuid.uuid4().hex} if path == "stubborn/long" else {}
        assert_done_once(lab, *ask(lab, path, **body))

    @BEFORE_AND_AFTER
    def test_of_an_accept_makes_two_or_none(self, lab, lose, when):
        lose(ACCEPT, when)
        user, ref, key = lab.new_user(), uuid.uuid4().hex, uuid.uuid4().hex

        first = user.post("probe/effect", {"ref": ref}, key=key)
        again = user.post("probe/effect", {"ref": ref}, key=key)

        assert first.status_code == 202
        assert again.status_code in (200, 202)
        assert first.json()["operation_id"] == again.json()["operation_id"]
        assert_done_once(lab, first.json()["operation_id"], ref)

    @BEFORE_AND_AFTER
    def test_of_a_retry_spends_two_attempts(self, lab, lose, when):
        lose(RETRY, when)

        id, ref = ask(lab, "probe/fail", kind="timeout", times=1)

        operation = lab.wait_final(id)
        assert lab.history(id) == [
            *SUCCEEDED[:2],
            ("processing", "retry_scheduled", "timeout"),
            ("retry_scheduled", "processing", ""),
            ("processing", "succeeded", ""),
        ]
        assert (operation["attempt"], lab.effects.count(ref)) == (2, 1)
        assert_nothing_owed(lab)

    @BEFORE_AND_AFTER
    def test_of_a_burial_leaves_two_dead_letters_or_none(self, lab, lose, when):
        lose("COMMIT", when, within=BURY)

        id, _ = ask(lab, "probe/fail", kind="bug", times=9)

        assert lab.wait_final(id)["reason"] == "bug"
        assert len(lab.moves(id)) == 3
        letters = lab.rows("SELECT id FROM operations_deadletter WHERE operation_id = %s", id)
        assert len(letters) == 1
        assert_nothing_owed(lab)

    def test_that_nobody_ever_tells_holds_the_operation_for_ever(self, lab, lose):
        """The way to the database swallows the answer and stays open: the hard limit ends the wait."""
        lose(CLAIM, "after", then="blackhole")

        id, ref = ask(lab, "stubborn/short", seconds=0, how="sleep", thing=uuid.uuid4().hex)

        operation = lab.wait_final(id)
        assert (operation["status"], operation["runs"], operation["attempt"]) == ("succeeded", 2, 2)
        assert lab.history(id)[2] == ("processing", "retry_scheduled", "timeout")
        assert lab.effects.count(ref) == 1
        assert_nothing_owed(lab)


class TestRestart:
    """Of PostgreSQL, immediate, as after a crash, while clients ask and workers work."""

    def test_loses_what_was_accepted_or_needs_a_restart_of_ours(self, lab, servers_behind_proxy):
        user, refs = lab.new_user(), [uuid.uuid4().hex for _ in range(60)]
        pids = {process.pid for process in lab.stack.processes.values()}
        with ThreadPoolExecutor(4) as threads:
            answers = [threads.submit(user.post, "probe/effect", {"ref": ref}, key=ref) for ref in refs]
            eventually(lambda: sum(answer.done() for answer in answers) > 15, what="the first answers")

            servers_behind_proxy.postgres.kill()
            servers_behind_proxy.postgres.start()

            statuses = [answer.result().status_code for answer in answers]
        reconnect(lab)
        assert set(statuses) <= {202, 503}
        again = [user.post("probe/effect", {"ref": ref}, key=ref) for ref in refs]

        assert {answer.status_code for answer in again} <= {200, 202}
        for ref, status, answer in zip(refs, statuses, again, strict=True):
            assert status != 202 or answer.headers["Idempotent-Replayed"] == "true", "a 202 was lost"
            operation = lab.wait_final(answer.json()["operation_id"])
            assert operation["status"] == "succeeded"
            # See Note [A claim may be lost with the database's last moments]: then a run was begun uncounted.
            # Or it was counted, and its worker could not hear of it: then the relay took it back.
            unheard = sum(move["actor"] == "relay" for move in lab.moves(str(operation["id"])))
            assert operation["runs"] - unheard <= lab.effects.count(ref) <= 2
            assert lab.effects.count(ref) >= 1
        rows = lab.rows("SELECT count(*) FROM operations_operation WHERE owner_id = %s", user.id)
        assert rows[0]["count"] == len(refs)
        assert {process.pid for process in lab.stack.processes.values()} == pids
        assert all(process.is_alive() for process in lab.stack.processes.values())
        assert_nothing_owed(lab)
