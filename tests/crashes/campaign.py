"""Kill at one point after another, and tell what came of it. Runs in a lane."""

import time
from typing import NamedTuple

from tests.crashes import judge, lanes
from tests.crashes.lanes import LEASE_SECONDS, RELAY_PERIOD_SECONDS, Lab
from tests.crashes.load import Load, Operator, offer
from tests.crashes.traps import Place
from tests.probes.marks import PAUSE_SECONDS

MOST_PASSAGES = 3  # of one point that are tried
BOUND_SECONDS = LEASE_SECONDS + RELAY_PERIOD_SECONDS + 2 * PAUSE_SECONDS + 2.0  # jitter doubles a pause
LOAD_SECONDS = 6.0  # on top of the bound: a replaced process takes seconds to start where others work too
POLL_SECONDS = 0.05
LONGEST_SLEEP_SECONDS = 1.5  # what may be left of it once everything else is over
FINISH_SECONDS = 0.3  # from a waking to a refused commit

_seen: set[str] = set()
_operators: dict[str, Operator] = {}


class Run(NamedTuple):
    """One run of the whole load, with a trap."""

    point: str
    process: str
    nth: int
    fired: bool
    recovered_seconds: float | None
    violations: list[str]


def try_out(place: Place) -> list[Run]:
    """Kill at the first passage, the second and so on, until nobody passes any more."""
    runs = [harm(lanes.here().lab, place, nth=1)]
    while runs[-1].fired and len(runs) < MOST_PASSAGES and not place.whole:
        runs.append(harm(lanes.here().lab, place, nth=len(runs) + 1))
    return runs


def harm(lab: Lab, place: Place, *, nth: int) -> Run:
    """Offer the load while the trap is set, start again what dies, wait for the end of it all, and judge."""
    make_ready(lab)
    operator = _operator_of(lab)
    load = offer(lab, when_stalled=lambda: lab.trap.set(place, nth=nth))
    ended_at = finish(lab, load, operator)
    sprung_at = lab.trap.sprung_at
    lab.trap.clear()
    recovered = None if sprung_at is None else round(ended_at - sprung_at, 2)
    let_sleeper_wake(lab, load)
    found = _news(judge.violations(lab, load))
    return Run(place.point, place.who, nth, sprung_at is not None, recovered, found)


def make_ready(lab: Lab) -> None:
    """Have every process up."""
    supervise(lab)
    for process in lab.stack.processes.values():
        process.wait_until_ready()


def supervise(lab: Lab) -> None:
    """Start again what has died, as whatever keeps processes running would."""
    for process in lab.stack.processes.values():
        if not process.is_alive():
            process.launch()


def finish(lab: Lab, load: Load, operator: Operator | None = None) -> float:
    """Wait until everything has come to its end, or should have; give when that was, as time.time()."""
    began = time.time()
    while judge.unfinished(lab, load):
        if time.time() > (lab.trap.sprung_at or began) + BOUND_SECONDS + LOAD_SECONDS:
            break
        supervise(lab)
        if operator is not None:
            operator.tend(load)
        time.sleep(POLL_SECONDS)
    return time.time()


def let_sleeper_wake(lab: Lab, load: Load) -> None:
    """Wait until the run that stood still has tried to finish; not for ever, it may have been killed."""
    ref = load.ref_of("stall")
    if ref is None:
        return
    give_up_at = time.monotonic() + LONGEST_SLEEP_SECONDS
    while not lab.effects.count(f"{ref}-woke") and time.monotonic() < give_up_at:
        time.sleep(POLL_SECONDS)
    time.sleep(FINISH_SECONDS)


def _operator_of(lab: Lab) -> Operator:
    if lab.stack.name not in _operators:
        _operators[lab.stack.name] = Operator(lab)
    return _operators[lab.stack.name]


def _news(violations: list[str]) -> list[str]:
    """Give what was not there after an earlier run."""
    new = [violation for violation in violations if violation not in _seen]
    _seen.update(new)
    return new
