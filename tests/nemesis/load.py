"""Clients that keep asking while everything fails: each request until it is answered, many more than once."""

import random
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Self

import httpx

from tests.crashes.load import insist, insist_on
from tests.faults.lab import LEASE_SECONDS, Row, User
from tests.nemesis.lab import Lab

CLIENTS = 6
PAUSE_SECONDS = 0.3  # between two requests of a client, on average
PATIENCE_SECONDS = 90.0  # a web server that is killed again while it starts keeps its clients waiting
MOST_IN_FLIGHT = 100  # more wait only for each other: the clients rest
REST_SECONDS = 1.0
OWNERS = 3
RESOURCES = 4  # that lives quarrel about, and as many lines
INSISTENCE: dict[str, Any] = {"excused": httpx.HTTPError, "patience_seconds": PATIENCE_SECONDS}


class Asked(NamedTuple):
    """One request, which may be sent any number of times."""

    user: User
    path: str
    body: Row
    key: str


def _live(how: str, **times: float) -> Callable[[random.Random], Row]:
    return lambda dice: {"how": how, "resource": "", **times}


def _quarrel(dice: random.Random) -> Row:
    return {"how": "plain", "resource": f"probe:{dice.randrange(RESOURCES)}"}


def _hold(dice: random.Random) -> Row:
    """Be at work on a resource long enough for its lock to be lost meanwhile."""
    return {"what": f"held-{dice.randrange(RESOURCES)}", "seconds": dice.uniform(0, 1.0)}


def _turn(dice: random.Random) -> Row:
    return {"what": f"line-{dice.randrange(RESOURCES)}", "seconds": dice.uniform(0, 0.3)}


def _sleep(dice: random.Random) -> Row:
    """Mostly a while, and now and then longer than a lease."""
    return {"seconds": dice.uniform(0.2, 1.0) if dice.random() < 0.9 else LEASE_SECONDS + 1}


# What is asked for, and how often of a hundred.
WISHES: tuple[tuple[int, str, Callable[[random.Random], Row]], ...] = (
    (17, "probe/life", _quarrel),
    (10, "probe/hold", _hold),
    (20, "probe/life", _live("work")),
    (10, "probe/life", _live("falter")),
    (3, "probe/life", _live("mend")),  # fails for good, until the operator has seen to it
    (3, "probe/life", _live("die")),
    (2, "probe/life", _live("stall", seconds=LEASE_SECONDS + 2, then_seconds=1.0)),
    (15, "probe/turn", _turn),
    (10, "probe/sleep", _sleep),
    (10, "inventory/sync", lambda dice: {}),
)


class Load:
    """What is asked, and what was answered to it."""

    def __init__(self, lab: Lab, seed: int) -> None:
        self._lab = lab
        self._seed = seed
        self.users = [lab.new_user() for _ in range(OWNERS)]
        self.asked: list[Asked] = []
        self.answers: dict[str, set[str]] = {}  # key → ids; there should be one
        self.refusals: list[str] = []  # answers that nobody should get
        self.versions: dict[int, int] = {}  # user → newest version of the provider's snapshot
        self.may_ask = threading.Event()
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._clients = [threading.Thread(target=self._be_a_client, args=(n,)) for n in range(CLIENTS)]
        self._copies = ThreadPoolExecutor(3 * CLIENTS)
        for user in self.users:
            self._move_on(user)

    def __enter__(self) -> Self:
        self.may_ask.set()
        for client in self._clients:
            client.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        for client in self._clients:
            client.join()
        self._copies.shutdown()

    def stop(self) -> None:
        """Ask for nothing more; what was asked is insisted on."""
        self._over.set()
        self.may_ask.set()

    @property
    def is_asking(self) -> bool:
        return any(client.is_alive() for client in self._clients)

    def conclude(self) -> None:
        """Ask once more for everybody's newest snapshot, when nothing fails any longer."""
        for user in self.users:
            self._move_on(user)
            self._send(Asked(user, "inventory/sync", {}, uuid.uuid4().hex))

    @property
    def accepted(self) -> set[str]:
        return {id for ids in list(self.answers.values()) for id in list(ids)}

    def _be_a_client(self, number: int) -> None:
        dice = random.Random(f"{self._seed}/{number}")
        while not self._over.is_set():
            if not self.may_ask.wait(REST_SECONDS) or self._over.is_set():
                continue
            asked = self._repeat(dice) if self.asked and dice.random() < 0.2 else self._wish(dice)
            copies = [self._copies.submit(self._send, asked) for _ in range(dice.choice((1, 1, 1, 2, 3)))]
            for copy in copies:
                copy.result()
            self._over.wait(dice.uniform(0, 2 * PAUSE_SECONDS))

    def _repeat(self, dice: random.Random) -> Asked:
        """Send what was sent before, as a console does that was switched off meanwhile."""
        return dice.choice(self.asked)

    def _wish(self, dice: random.Random) -> Asked:
        user = dice.choice(self.users)
        _, path, body_of = dice.choices(WISHES, [wish[0] for wish in WISHES])[0]
        body = body_of(dice)
        if path == "inventory/sync":
            self._move_on(user)
        else:
            body["ref"] = uuid.uuid4().hex
        asked = Asked(user, path, body, uuid.uuid4().hex)
        self.asked.append(asked)
        return asked

    def _move_on(self, user: User) -> None:
        """Let the provider have a newer snapshot of somebody."""
        with self._lock:
            version = self.versions[user.id] = self.versions.get(user.id, 0) + 1
            self._lab.set_items(user, version, sword=version, potion=5)

    def _send(self, asked: Asked) -> None:
        try:
            id = insist_on(asked.user, asked.path, asked.body, asked.key, **INSISTENCE)
        except (AssertionError, httpx.HTTPError) as refusal:
            self.refusals.append(f"{asked.path} with key {asked.key}: {refusal!r}")
        else:
            with self._lock:
                self.answers.setdefault(asked.key, set()).add(id)


def read(user: User) -> Row:
    """Give somebody's inventory as the API reads it."""
    return insist(user.inventory, **INSISTENCE)
