"""A lab whose servers are harmed as well: it asks the database over a new connection each time."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import psycopg
from psycopg.rows import dict_row

from deploy.local.stack import Stack
from tests.faults.effects import Effects
from tests.faults.lab import LAB, PROBES, Row
from tests.faults.lab import Lab as FaultLab
from tests.probes import lines, marks

APPS = f"{lines.EXTRA_APPS},tests.probes.marks"
EVERYTHING = ("provider", "web", "worker-inventory", "worker-inventory#2", "worker-inventory#3", "relay")
SETTINGS = {
    **LAB,
    "EXTRA_APPS": APPS,
    "WORKER_GROUP_PROBES": ",".join([*PROBES, *lines.VERBS, "probe.life"]),
    "WORKER_SLOTS": "3",
    "GRACE_SECONDS": "6",
    "GRACE_MARGIN_SECONDS": "2",
    "PROVIDER_TIMEOUT_SECONDS": "2",
    "BREAKER_FIRST_PROBE_SECONDS": "1",  # outages last seconds here
    "BREAKER_LONGEST_PROBE_SECONDS": "4",
}
IN_FLIGHT = """
    SELECT count(*) FILTER (WHERE status = 'processing') AS processing, count(*) AS due
    FROM operations_operation
    WHERE status = 'processing'
        OR status IN ('queued', 'retry_scheduled') AND run_at <= clock_timestamp()"""


class InFlight(NamedTuple):
    """How many operations are not at their end: those at work, and these with all that are due."""

    processing: int
    due: int


class Lab(FaultLab):
    """A lab on servers of its own."""

    def rows(self, query: str, *values: object) -> list[Row]:
        """Ask the database.

        Raises:
            psycopg.OperationalError: it is away.
        """
        url = self.stack.env["DATABASE_URL"]
        with psycopg.connect(url, autocommit=True, row_factory=dict_row, connect_timeout=2) as connection:
            found = connection.execute(query, values)
            return found.fetchall() if found.description is not None else []

    def in_flight(self) -> InFlight:
        """Count what is in flight; raises like rows."""
        return InFlight(**self.rows(IN_FLIGHT)[0])

    def is_up(self) -> bool:
        """Say whether every process and both servers are ready; raises if a server is away."""
        with self.broker as broker:
            broker.ping()
        self.rows("SELECT 1")
        return all(process.is_ready() for process in self.stack.processes.values())

    def close(self) -> None:
        for user in self._users:
            user.client.close()


@contextmanager
def new_lab(directory: Path, effects: Effects, *, without: str = "") -> Iterator[Lab]:
    """Run a whole stack on its own servers; `without` one guard, if it names a switch of tests.probes."""
    apps = f"{APPS},tests.probes.switches.{without}" if without else APPS
    env = {**SETTINGS, "EXTRA_APPS": apps, "EFFECTS_URL": effects.url}
    with Stack(directory, processes=EVERYTHING, env=env) as stack, closing(Lab(stack, effects)) as lab:
        lab.rows(marks.TABLE)
        lab.rows(lines.TABLE)
        yield lab
        for process in stack.processes.values():  # nothing is kept of it, so nobody waits for a good-bye
            if process.is_alive():
                process.kill(whom="group")
