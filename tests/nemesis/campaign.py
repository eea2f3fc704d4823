"""Do what the schedule says to a stack at work, mend what has died, wait for the end of it all, and judge."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import httpx
import psycopg

from deploy.local.supervisor import Supervisor
from tests.crashes.load import Operator
from tests.nemesis import harm, judge
from tests.nemesis.lab import InFlight, Lab
from tests.nemesis.load import MOST_IN_FLIGHT, Load
from tests.nemesis.schedule import Fault

POLL_SECONDS = 0.1
LOOK_SECONDS = 0.5  # between two looks at how much is in flight
PROGRESS_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 1.0  # of who restarts the dead: they die every half minute here
LATE_SECONDS = 120.0  # by how much all faults together may wait for victims and for operations in flight
OPERATOR_SECONDS = 3.0  # between two looks at the dead letters
# From the last fault to the end of what it touched. The longest pause of a job here is inventory.sync's last,
# 120 s, which jitter may double.
SETTLE_SECONDS = 300.0
LETTERS = """
    SELECT l.id, d.payload ->> 'ref' AS ref FROM operations_deadletter AS l
    JOIN operations_operationdata AS d ON d.operation_id = l.operation_id
    WHERE l.resolution = 'waiting' ORDER BY l.id LIMIT 20"""
MEND = "INSERT INTO probe_mark (ref, what) VALUES (%s, 'mended')"


class Struck(NamedTuple):
    """A fault that was done, when after the begin, and how much was in flight."""

    fault: Fault
    at_seconds: float
    in_flight: InFlight


class Outcome(NamedTuple):
    """What was done, and what came of it."""

    struck: list[Struck]
    verdict: judge.Verdict
    replays: int
    settled_seconds: float


class Campaign:
    """One run; belongs to the main thread, which alone may start processes."""

    def __init__(self, lab: Lab, load: Load, schedule: Sequence[Fault], tell: Callable[[str], None]) -> None:
        self._lab, self._load, self._schedule, self._tell = lab, load, schedule, tell
        self._supervisor = Supervisor(lab.stack, longest_pause_seconds=LONGEST_PAUSE_SECONDS)
        self._began = 0.0
        self._looked_at = self._told_at = 0.0
        self._undo: list[tuple[float, harm.Undo]] = []
        self.struck: list[Struck] = []

    @property
    def _now(self) -> float:
        return time.monotonic() - self._began

    def run(self) -> Outcome:
        """Play the schedule to its end, and what follows."""
        self._began = time.monotonic()
        with _Operator(self._lab) as operator:
            with self._load:
                self._strike_all()
                self._load.stop()
                self._wait(lambda: not self._load.is_asking)  # what died last is needed to answer
            self._end_faults(until=float("inf"))
            settled_seconds = self._settle()
        return Outcome(self.struck, judge.verdict(self._lab, self._load), operator.replays, settled_seconds)

    def _strike_all(self) -> None:
        for fault in self._schedule:
            while self._now < fault.at_seconds or not self._struck(fault):
                self._look_after()
                if self._now > self._schedule[-1].at_seconds + LATE_SECONDS:
                    return

    def _struck(self, fault: Fault) -> bool:
        """Do it if something is in flight and the victim is up; say whether it was done."""
        try:
            in_flight = self._lab.in_flight()
            if not in_flight.due:
                return False
            undo = harm.do(self._lab, fault)
        except (psycopg.OperationalError, harm.VictimAway):
            return False
        if undo is not None:
            self._undo.append((self._now + fault.for_seconds, undo))
        self.struck.append(Struck(fault, round(self._now, 2), in_flight))
        return True

    def _look_after(self) -> None:
        """Restart the dead, end what lasts, keep the load in bounds, and tell how it goes."""
        self._supervisor.run_once()
        self._end_faults(until=self._now)
        if self._now >= self._looked_at + LOOK_SECONDS:
            self._looked_at = self._now
            self._look()
        time.sleep(POLL_SECONDS)

    def _end_faults(self, *, until: float) -> None:
        for due in [each for each in self._undo if each[0] <= until]:
            self._undo.remove(due)
            due[1]()

    def _settle(self) -> float:
        """Wait until everything is at its end or should be; give how many seconds that took."""
        began = self._now
        self._wait(self._lab.is_up)
        self._load.conclude()
        self._wait(lambda: not judge.unfinished(self._lab))
        return round(self._now - began, 1)

    def _wait(self, is_over: Callable[[], bool]) -> None:
        give_up_at = self._now + SETTLE_SECONDS
        while self._now < give_up_at:
            self._look_after()
            try:
                if is_over():
                    return
            except harm.AWAY:
                continue  # it is on its way up

    def _look(self) -> None:
        """Let the clients rest while the workers are behind, and tell now and then how it goes."""
        try:
            due = self._lab.in_flight().due
        except psycopg.OperationalError:
            return  # the database is on its way up
        if due > MOST_IN_FLIGHT:
            self._load.may_ask.clear()
        else:
            self._load.may_ask.set()
        if self._now < self._told_at + PROGRESS_SECONDS:
            return
        self._told_at = self._now
        last = self.struck[-1].fault.kind if self.struck else "none yet"
        self._tell(
            f"{self._now:5.0f} s  {len(self.struck)} of {len(self._schedule)} faults, the last: {last};"
            f" {len(self._load.accepted)} accepted, {due} in flight"
        )


class _Operator:
    """Somebody who all the time mends what failed for good, and sends it round again."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._admin = Operator(lab)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tend)
        self.replays = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        self._admin.close()

    def _tend(self) -> None:
        while not self._over.wait(OPERATOR_SECONDS):
            try:
                for letter in self._lab.rows(LETTERS):
                    self._lab.rows(MEND, letter["ref"])
                    self._admin.replay(letter["id"], reason="mended")
                    self.replays += 1
            except (psycopg.OperationalError, httpx.HTTPError):
                continue  # a look at the letters says what was done
