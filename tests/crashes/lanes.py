"""Processes that each own a stack and harm it, several beside each other, for one test session.

Only a main thread may start what a stack is made of, so each lane is a process of its own.
"""

import ctypes
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import cached_property
from multiprocessing.util import Finalize
from pathlib import Path

import redis

from deploy.local.children import PR_SET_PDEATHSIG
from deploy.local.servers import Servers
from deploy.local.stack import Stack, unique_name
from tests.crashes.traps import Trap
from tests.faults.effects import Effects, serving
from tests.faults.lab import LAB, PROBES
from tests.faults.lab import Lab as FaultLab
from tests.probes.marks import TABLE

LANES = 3  # stacks on two cores: much of a run is waiting for leases
LEASE_SECONDS = 3.0
RELAY_PERIOD_SECONDS = 0.5
SETTINGS = {
    **LAB,
    "LEASE_SECONDS": str(LEASE_SECONDS),
    "RELAY_PERIOD_SECONDS": str(RELAY_PERIOD_SECONDS),
    "REPUBLISH_AFTER_SECONDS": "2",
    "EXTRA_APPS": "tests.probes,tests.probes.marks",
    "WORKER_GROUP_PROBES": ",".join([*PROBES, "probe.life"]),
    "WORKER_SLOTS": "2",
    "WEB_THREADS": "4",
}
EVERYTHING = ("provider", "gateway", "web", "worker-inventory", "worker-inventory#2", "relay")


class Lab(FaultLab):
    """A lab with a table for marks and a trap."""

    def __init__(self, stack: Stack, effects: Effects, trap: Trap) -> None:
        super().__init__(stack, effects)
        self.trap = trap
        self.database.execute(TABLE)

    def flush_locks(self) -> None:
        with redis.Redis.from_url(self.stack.servers.redis_url, db=2) as locks:
            locks.flushdb()


class Lane:
    """One process of the pool: the stub for effects, and the stack that its runs share."""

    def __init__(self, servers: Servers, template: str, directory: Path) -> None:
        self._servers, self._template, self._directory = servers, template, directory
        self._open = ExitStack()
        Finalize(None, self._open.close, exitpriority=1)

    @cached_property
    def effects(self) -> Effects:
        return self._open.enter_context(serving())

    @cached_property
    def lab(self) -> Lab:
        return self._open.enter_context(self.new_lab(EVERYTHING))

    @contextmanager
    def new_lab(self, processes: Sequence[str], **env: str) -> Iterator[Lab]:
        """Run a stack of these processes, with a Valkey of its own, for the time of the block."""
        name = unique_name()
        trap = Trap(self._directory / name)
        env = {**SETTINGS, "EFFECTS_URL": self.effects.url, "TRAP": str(trap.file), **env}
        with Servers(durable=False, postgres=self._servers.postgres) as servers:
            stack = Stack(
                self._directory / name,
                processes=processes,
                servers=servers,
                name=name,
                template=self._template,
                env=env,
            )
            with stack, closing(Lab(stack, self.effects, trap)) as lab:
                yield lab
                _end_at_once(stack)


def _end_at_once(stack: Stack) -> None:
    """Nothing is kept of it, so nobody waits for a good-bye."""
    for process in stack.processes.values():
        if process.is_alive():
            process.kill(whom="group")


_lane: Lane


def begin(servers: Servers, template: str, directory: Path) -> None:
    """Make this process a lane. It ends with the session, however that ends."""
    global _lane
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _lane = Lane(servers, template, directory)


def here() -> Lane:
    return _lane


def open_pool(servers: Servers, template: str, directory: Path) -> ProcessPoolExecutor:
    """Make the lanes. They are forks, so they know what this session knows."""
    return ProcessPoolExecutor(
        LANES,
        mp_context=multiprocessing.get_context("fork"),
        initializer=begin,
        initargs=(servers, template, directory),
    )
