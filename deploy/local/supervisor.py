"""Start again what dies: servers and processes of a stack, each with its own growing pause."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from deploy.local.named import NamedServers
from deploy.local.process import Process
from deploy.local.server import Server
from deploy.local.stack import Stack

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 8.0  # so that what can run again does within 10 s
FORGIVEN_SECONDS = 30.0  # up this long, and the next death counts as the first


@dataclass
class Record:
    """How often something died, and when it may start again."""

    deaths: int = 0
    started_at: float = 0.0
    due_at: float | None = None


class Supervisor:
    """Looks after one stack; call run_once again and again, from the main thread."""

    def __init__(
        self,
        stack: Stack,
        clock: Callable[[], float] = time.monotonic,
        *,
        longest_pause_seconds: float = LONGEST_PAUSE_SECONDS,
    ) -> None:
        """Look after a stack; where deaths are the purpose, pauses need not grow as long."""
        self._stack = stack
        self._clock = clock
        self._longest_pause_seconds = longest_pause_seconds
        self._records: dict[str, Record] = {}

    def run_once(self) -> list[str]:
        """Start what is dead and due, servers first, and give their names."""
        wards: list[Server | Process] = [*self._servers(), *self._stack.processes.values()]
        return [ward.name for ward in wards if not ward.is_alive() and self._revive(ward)]

    def _servers(self) -> list[Server]:
        servers = self._stack.servers
        return [] if isinstance(servers, NamedServers) else [servers.valkey, servers.postgres]

    def _revive(self, ward: Server | Process) -> bool:
        record = self._records.setdefault(ward.name, Record())
        if record.due_at is None:
            self._note_death(record)
        if record.due_at is None or self._clock() < record.due_at:
            return False

        record.due_at = None
        record.started_at = self._clock()
        ward.launch()
        return True

    def _note_death(self, record: Record) -> None:
        if self._clock() - record.started_at > FORGIVEN_SECONDS:
            record.deaths = 0
        pause_seconds = min(FIRST_PAUSE_SECONDS * 2**record.deaths, self._longest_pause_seconds)
        record.deaths += 1
        record.due_at = self._clock() + pause_seconds
