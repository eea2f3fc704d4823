"""The tests of the tests: with one guard away, the suite must find the invariant broken that it guards.

Each scenario runs twice: on the product as it is, where it must find nothing, and without the guard.
"""

import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from tests.crashes import judge, lanes
from tests.crashes.campaign import finish, let_sleeper_wake, make_ready
from tests.crashes.lanes import LEASE_SECONDS, Lab
from tests.crashes.load import WAKES_AFTER_SECONDS, Load, insist_on, new_load
from tests.crashes.traps import Place
from tests.faults.lab import eventually

SWITCHES = "tests.probes,tests.probes.marks,tests.probes.switches."
TOGETHER = 20
STARTS_ALLOWED = 3  # of a probe: Backoff(0.5, 0.5)


class Guard(NamedTuple):
    """What happened without a guard."""

    guard: str
    invariant: str
    suite_failed: bool


class Scenario(NamedTuple):
    """What to do, what must be found broken without the guard, and what a stack without it is made of."""

    invariant: str
    play: Callable[[Lab], Load]
    switch: str = ""
    processes: Sequence[str] = ("provider", "web", "worker-inventory", "relay")
    alter: str = "SELECT 1"


class Outcome(NamedTuple):
    """What a scenario found with the guard, and without it."""

    invariant: str
    with_guard: list[str]
    without: list[str]


def try_out(name: str) -> Outcome:
    scenario = SCENARIOS[name]
    lab = lanes.here().lab
    make_ready(lab)
    kept = judge.violations(lab, scenario.play(lab))
    env = {"EXTRA_APPS": f"{SWITCHES}{scenario.switch}"} if scenario.switch else {}
    with lanes.here().new_lab(scenario.processes, **env) as bare:
        bare.database.execute(scenario.alter)
        return Outcome(scenario.invariant, kept, judge.violations(bare, scenario.play(bare)))


def wake_beside_the_next_run(lab: Lab) -> Load:
    """A run that stood still past its lease finishes while the next one is at work."""
    load = new_load(lab)
    load.live("stall", seconds=WAKES_AFTER_SECONDS, then_seconds=3)
    finish(lab, load)
    let_sleeper_wake(lab, load)
    return load


def write_after_the_next_holder(lab: Lab) -> Load:
    """A run stands still, its resource's lock is lost, another operation works there, and the first wakes."""
    load = new_load(lab)
    resource = f"probe:{load.owner.id}"
    first = load.live("stall", resource=resource, seconds=LEASE_SECONDS - 1)
    eventually(lambda: lab.effects.count(first), what="the first operation to be at work")
    lab.flush_locks()
    load.live("plain", resource=resource)
    finish(lab, load)
    return load


def repeat_a_request(lab: Lab) -> Load:
    """One request arrives many times at once."""
    load = new_load(lab)
    key, ref = uuid.uuid4().hex, uuid.uuid4().hex
    body = {"ref": ref, "how": "plain", "resource": ""}
    with ThreadPoolExecutor(TOGETHER) as threads:
        posts = [threads.submit(insist_on, load.owner, "probe/life", body, key) for _ in range(TOGETHER)]
        load.lives[ref] = min(post.result() for post in posts)
    load.hows[ref] = "plain"
    finish(lab, load)
    return load


def die_before_telling_the_cache(lab: Lab) -> Load:
    """The worker dies between its commit and what it owes the cache."""
    load = new_load(lab)
    lab.trap.set(Place("after_commit.begin", "worker"), nth=1)
    load.syncs = [insist_on(load.owner, "inventory/sync", {})]
    finish(lab, load)
    lab.trap.clear()
    return load


def lose_a_worker(lab: Lab) -> Load:
    """A worker dies with a claim, with nobody left who saw it."""
    load = new_load(lab)
    lab.trap.set(Place("claim.committed", "worker", whole=True), nth=1)
    load.live("plain")
    finish(lab, load)
    lab.trap.clear()
    return load


def lose_an_answer(lab: Lab) -> Load:
    """The worker dies when the other side has done it, and nothing says so yet."""
    load = new_load(lab)
    lab.trap.set(Place("effect.answered", "worker"), nth=1)
    load.live("buy")
    finish(lab, load)
    lab.trap.clear()
    return load


def lose_every_worker(lab: Lab) -> Load:
    """An operation kills every process that runs it."""
    load = new_load(lab)
    ref = load.live("perish")

    def over() -> bool:
        operation = lab.operation(load.lives[ref])
        return operation["status"] == "failed_permanent" or operation["runs"] > STARTS_ALLOWED

    eventually(over, what="the end of what kills its workers")
    finish(lab, load)
    return load


SCENARIOS = {
    "token": Scenario("I4", wake_beside_the_next_run, switch="TokenOff"),
    "fence": Scenario("I4", write_after_the_next_holder, switch="FenceOff"),
    "unique constraint": Scenario(
        "I5",
        repeat_a_request,
        switch="UniqueOff",
        alter="ALTER TABLE operations_idempotencyrecord DROP CONSTRAINT one_operation_a_key",
    ),
    "AfterCommit": Scenario("I9", die_before_telling_the_cache, switch="AfterCommitOff"),
    "relay": Scenario("I1", lose_a_worker, processes=("provider", "web", "worker-inventory")),
    "look-up before all else": Scenario("I2", lose_an_answer, switch="LookUpOff"),
    "attempt count at claim": Scenario("I7", lose_every_worker, switch="AttemptsOff"),
}
