"""What is done to the stack and when: a pure function of a seed and a length, so that a run can be had again.

Every round has each kind of fault once, in an order and at moments of its own.
"""

import random
from typing import NamedTuple

from tests.faults.lab import LEASE_SECONDS

ROUND_SECONDS = 28.0  # ten of each kind in five minutes
# How long a fault lasts that does not end by itself, at least and at most.
LENGTHS = {
    "worker stopped beyond its lease": (LEASE_SECONDS + 0.5, LEASE_SECONDS + 2.5),
    "slow provider": (3.0, 6.0),
    "failing provider": (2.0, 5.0),
}
KINDS = (
    "child killed",
    "worker killed",
    "relay killed",
    "web killed",
    "worker stopped beyond its lease",
    "worker told to end",
    "valkey restarted",
    "valkey flushed",
    "postgres restarted",
    "backends killed",
    "slow provider",
    "failing provider",
    "messages doubled",
)


class Fault(NamedTuple):
    """One harm: when it is due after the begin, of what kind, and how long it lasts (0: it is a moment).

    `pick`, from 0 to 1, chooses among several victims.
    """

    at_seconds: float
    kind: str
    pick: float
    for_seconds: float


def plan(*, seed: int, seconds: float) -> tuple[Fault, ...]:
    """Give the faults of a run of that length in the order in which they happen."""
    dice = random.Random(seed)
    rounds = max(1, int(seconds // ROUND_SECONDS))
    length = seconds / rounds
    return tuple(fault for number in range(rounds) for fault in _round(dice, number * length, length))


def _round(dice: random.Random, begins_at: float, seconds: float) -> list[Fault]:
    kinds = dice.sample(KINDS, len(KINDS))
    slot = seconds / len(kinds)
    return [
        Fault(
            at_seconds=round(begins_at + (place + dice.random()) * slot, 2),
            kind=kind,
            pick=dice.random(),
            for_seconds=round(dice.uniform(*LENGTHS.get(kind, (0.0, 0.0))), 2),
        )
        for place, kind in enumerate(kinds)
    ]
