"""C31: events that arrive out of order, twice, or at once. The newest wins, and what it beat is counted."""

import threading
import uuid
from collections import Counter
from itertools import permutations

import pytest

from tests.faults.lab import RECOVERY_SECONDS
from tests.faults.lines import LINES, locks, prepare, written
from tests.faults.scenarios import at_once

pytestmark = [pytest.mark.process, pytest.mark.embedded]

VERSIONS = (1, 2, 3, 4)
PAIRS = 50


@pytest.fixture(scope="module")
def lab(new_lab):
    lab = new_lab("provider", "web", "worker-inventory", "worker-inventory#2", "relay", env=LINES)
    return prepare(lab)


def arriving(order):
    """Add a duplicate: the newest is delivered twice in a row."""
    newest = order.index(max(order))
    return (*order[: newest + 1], *order[newest:])


def expected(order):
    """Say how often each end comes: a newer one is applied, an equal one is a duplicate, the rest is old."""
    ends, applied = Counter(), 0
    for version in order:
        ends["" if version > applied else "duplicate" if version == applied else "stale_version"] += 1
        applied = max(applied, version)
    return ends


def items(version):
    """Give what a user owns as of a version: something that other versions lack, too."""
    return {"sword": version, f"only-in-{version}": 1}


class Counters:
    """How many operations were ignored since this was made, by reason."""

    def __init__(self, lab):
        self._lab = lab
        self._before = self._counted()

    def since(self):
        return {reason: count - self._before[reason] for reason, count in self._counted().items()}

    def _counted(self):
        counted = self._lab.counted
        return {
            reason: counted("ops_operations_completed_total", outcome="ignored", reason=reason)
            for reason in ("stale_version", "duplicate")
        }


class TestOutOfOrder:
    def test_the_last_to_arrive_wins(self, lab):
        """Parts 1 and 2: all orders of four versions and a duplicate, one order a user."""
        counters = Counters(lab)
        orders = {lab.new_user(): arriving(order) for order in permutations(VERSIONS)}
        ids = {user: [] for user in orders}

        for arrived in zip(*orders.values(), strict=True):
            for user, version in zip(orders, arrived, strict=True):
                lab.set_items(user, version, **items(version))
                ids[user].append(user.ask("inventory/sync"))
            for user in orders:
                lab.wait_final(ids[user][-1])

        newest = {sku: (quantity, 4) for sku, quantity in items(4).items()}
        assert [lab.items(user) for user in orders] == [newest] * len(orders)
        every = Counter()
        for user, order in orders.items():
            ends = Counter(lab.operation(id)["reason"] for id in ids[user])
            assert ends == expected(order), order
            every += ends
        # In any order the first is the newest so far, the second in a half of all, the third in a third, the
        # fourth in a quarter: 24 * (1 + 1/2 + 1/3 + 1/4) = 50 are applied, and 24 * 4 - 50 = 46 are old.
        assert every == {"": 50, "stale_version": 46, "duplicate": 24}
        assert counters.since() == {"stale_version": 46, "duplicate": 24}


class TestAtOnce:
    """Part 3: two workers, two versions of one thing."""

    def bring(self, lab, **how):
        """Ask for versions 2 and 3 of fifty things, each pair at the same moment; give their ids by thing."""
        users = [lab.new_user(), lab.new_user()]
        things = [uuid.uuid4().hex for _ in range(PAIRS)]

        def ask(user, version, what):
            return user.ask("probe/version", {"what": what, "version": version, **how})

        ids = {
            what: at_once(
                [
                    lambda user=user, version=version, what=what: ask(user, version, what)
                    for user, version in zip(users, (2, 3), strict=True)
                ]
            )
            for what in things
        }
        for pair in ids.values():
            for id in pair:
                lab.wait_final(id, within=RECOVERY_SECONDS * 3)
        return ids

    def judge(self, lab, ids):
        for what, pair in ids.items():
            seen = [row["seen"] for row in written(lab, what)]
            assert seen in (["2", "3"], ["3"]), f"{seen} were written, in this order"
            ends = [lab.operation(id)["status"] for id in pair]
            assert ends == ["succeeded" if len(seen) == 2 else "ignored", "succeeded"]
        applied = lab.rows(
            "SELECT applied_version FROM operations_resourcefence WHERE resource = ANY(%s)",
            [f"probe:version:{what}" for what in ids],
        )
        assert [row["applied_version"] for row in applied] == [3] * PAIRS

    def test_the_slower_of_two_workers_wins(self, lab):
        self.judge(lab, self.bring(lab))

    def test_the_slower_of_two_workers_wins_when_no_lock_keeps_them_apart(self, lab):
        """The lock store is emptied all the time, so that runs meet, and the fence hands one back."""
        over = threading.Event()

        def empty():
            with locks(lab) as store:
                while not over.wait(0.002):
                    store.flushdb()

        emptying = threading.Thread(target=empty)
        emptying.start()
        try:
            ids = self.bring(lab, seconds=0.02)
        finally:
            over.set()
            emptying.join()

        self.judge(lab, ids)
        met = [id for pair in ids.values() for id in pair if lab.operation(id)["interruptions"]]
        assert met, "no two runs met"


class TestStated:
    """The version comes with the request, so what is old is known before anything is done."""

    def test_costs_a_run_although_it_is_old(self, lab):
        user, what = lab.new_user(), uuid.uuid4().hex

        def end_of(version, **content):
            body = {"what": what, "version": version, **content}
            return lab.wait_final(user.ask("probe/stated", body))

        ends = [end_of(version) for version in (2, 1, 2, 3)]
        other = end_of(3, content="another")

        assert [(end["status"], end["reason"], end["runs"]) for end in ends] == [
            ("succeeded", "", 1),
            ("ignored", "stale_version", 0),
            ("ignored", "duplicate", 0),
            ("succeeded", "", 1),
        ]
        assert (other["status"], other["reason"], other["runs"]) == ("failed_permanent", "invalid_input", 0)
        assert [row["seen"] for row in written(lab, what)] == ["2", "3"]

    def test_is_written_over_a_newer_one_that_came_while_it_worked(self, lab):
        """The lock store is emptied, so that both are at work at once."""
        user, what = lab.new_user(), uuid.uuid4().hex
        older = user.ask("probe/stated", {"what": what, "version": 1, "seconds": 2})
        lab.wait_for(older, "processing")
        with locks(lab) as store:
            store.flushdb()

        newer = lab.wait_final(user.ask("probe/stated", {"what": what, "version": 2}))

        assert newer["status"] == "succeeded"
        ended = lab.wait_final(older)
        assert (ended["status"], ended["reason"]) == ("ignored", "stale_version")
        assert [row["seen"] for row in written(lab, what)] == ["2"]


class TestEqual:
    """Part 4: two that claim one version. docs/lifecycle.md says so: the first that was applied stays."""

    @pytest.mark.parametrize("first", ["sword", "shield"])
    def test_the_later_of_two_equal_versions_wins(self, lab, first):
        second = {"sword": "shield", "shield": "sword"}[first]
        user = lab.new_user()
        lab.set_items(user, 5, **{first: 1})
        assert lab.wait_final(user.ask("inventory/sync"))["status"] == "succeeded"
        lab.set_items(user, 5, **{second: 1})

        other = lab.wait_final(user.ask("inventory/sync"))

        assert lab.items(user) == {first: (1, 5)}
        assert (other["status"], other["reason"]) == ("failed_permanent", "invalid_input")
        assert other["error"]["message"] == "version 5 was applied before with other content"
