"""Keep claims alive while their runs work: a thread with its own connection, opened at the first beat."""

import logging
import os
import threading
import time
from types import TracebackType

from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection
from psycopg.errors import LockNotAvailable

from operations import claims, lifecycle, metrics
from operations.claims import Claim
from operations.publish import publish
from tasks import after_commit, drain, holds, lock

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.2  # how often a child looks whether its worker was told to end, and what it can forget
KEEP_SECONDS = 60.0  # a connection that was not needed for so long is closed
ENDING_SECONDS = 1.0  # what a run may still take that turns out to have made its last move


class Heartbeat:
    """Renew the lease and the lock, each judged by itself, from entering to leaving."""

    def __init__(self, claim: Claim, *, claimed_at: float | None = None) -> None:
        """Beat for `claim`, asked for at `claimed_at` (time.monotonic()); nothing happens before entering."""
        self.claim = claim
        self.claim_lost = False
        self.lock_lost = False
        self.cancel_requested = claim.operation.cancel_requested_at is not None
        self.ending = False  # a move that ends the claim is on its way: a beat that finds it gone is no loss
        self._stop = threading.Event()
        # A lease begins after it was asked for: counted from there it may seem to end early, never late.
        self._renewed_at = time.monotonic() if claimed_at is None else claimed_at
        self._next_beat = self._renewed_at + settings.HEARTBEAT_SECONDS

    def __enter__(self) -> "Heartbeat":
        self._write_down()
        _pulse.watch(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._stop.set()
        _pulse.forget(self)

    def look(self) -> None:
        """Beat if it is time, and leave if the worker ends."""
        if self._stop.is_set() or self.claim_lost:
            return
        if time.monotonic() >= self._next_beat:
            self._next_beat = time.monotonic() + settings.HEARTBEAT_SECONDS
            self._renew_lease()
            self._renew_lock()
        if drain.in_child():
            self._leave_in_time()

    def _leave_in_time(self) -> None:
        """End this process if its run can't be stopped otherwise: it drains too long, or lost its claim."""
        if drain.time_is_up() and not self._stop.is_set():
            self._hand_back()
        if self.claim_lost and not self._stop.wait(settings.HEARTBEAT_SECONDS / 2):
            log.error("operation.overran_its_lease", extra=self.claim.operation.log_fields())
            os._exit(1)

    def _hand_back(self) -> None:
        """Hand the run back and end, unless it is about to end by itself."""
        try:
            handed_back = lifecycle.hand_back(self.claim, error="the worker ends")
        except (DatabaseError, InterfaceError) as error:
            self._give_up_handing_back(error)
            return
        if handed_back is None and self._stop.wait(ENDING_SECONDS):
            return  # it had been moved already, and what it owed is done
        try:
            if handed_back is not None:
                holds.let_go()
                log.warning("operation.interrupted", extra=self.claim.operation.log_fields())
                after_commit.settle(handed_back)
                publish(handed_back)
                after_commit.forget_settled()
        finally:
            os._exit(0)

    def _give_up_handing_back(self, error: Exception) -> None:
        """Try again at the next look, if there is time: the finish holds the row, or the database is away."""
        connection.close()
        if drain.seconds_left() < settings.GRACE_MARGIN_SECONDS / 2:
            fields = {**self.claim.operation.log_fields(), "error": type(error).__name__}
            log.warning("operation.not_handed_back", extra=fields)
            os._exit(1)

    def _renew_lease(self) -> None:
        asked_at = time.monotonic()
        try:
            _connect_impatiently()
            renewed = self._extend()
        except (DatabaseError, InterfaceError) as error:
            connection.close()
            # Our own finishing transaction holds the row: it is alive, and its proof decides.
            renewed = isinstance(error.__cause__, LockNotAvailable)
            if renewed:
                asked_at = time.monotonic()
            elif self._lease_lasts():
                return
        if not renewed and not self.ending and not self._stop.is_set():
            self._lose_claim()
            return
        self._renewed_at = asked_at
        if not self._stop.is_set():
            self._write_down()

    def _extend(self) -> bool:
        renewal = claims.extend(self.claim.operation.id, token=self.claim.token)
        self.cancel_requested = self.cancel_requested or (renewal is not None and renewal.cancel_requested)
        return renewal is not None

    def _write_down(self) -> None:
        holds.hold(self.claim.operation.id, until=self._renewed_at + settings.LEASE_SECONDS)

    def _lose_claim(self) -> None:
        self.claim_lost = True
        metrics.FENCE_REJECTED.labels(self.claim.operation.job_type, "heartbeat").inc()
        log.warning("operation.lease_lost", extra=self.claim.operation.log_fields())

    def _lease_lasts(self) -> bool:
        return time.monotonic() + settings.HEARTBEAT_SECONDS < self._renewed_at + settings.LEASE_SECONDS

    def _renew_lock(self) -> None:
        resource = self.claim.operation.resource
        if not resource or self.lock_lost:
            return
        cause = "expired"
        try:
            self.lock_lost = not lock.renew(resource, token=self.claim.token)
        except lock.StoreAway:
            self.lock_lost, cause = True, "renew_failed"
        self.lock_lost = self.lock_lost and not self._stop.is_set()  # its own end has freed it
        if self.lock_lost:
            metrics.LOCK_LOST.labels(self.claim.operation.job_type, cause).inc()
            log.warning("lock.lost", extra={**self.claim.operation.log_fields(), "cause": cause})


class Pulse:
    """The thread of a process that looks after its runs; starting one for each would cost a tenth of it."""

    def __init__(self) -> None:
        """Start at the first run."""
        self._thread: threading.Thread | None = None
        self._watched: set[Heartbeat] = set()
        self._needed_at = 0.0  # the connection, by time.monotonic()

    def watch(self, heartbeat: Heartbeat) -> None:
        self._watched.add(heartbeat)
        if self._thread is None or not self._thread.is_alive():  # none survives a fork, or a bug of ours
            self._thread = threading.Thread(target=self._go_on, name="heartbeat", daemon=True)
            self._thread.start()

    def forget(self, heartbeat: Heartbeat) -> None:
        self._watched.discard(heartbeat)

    def _go_on(self) -> None:
        while True:
            time.sleep(min(LOOK_SECONDS, settings.HEARTBEAT_SECONDS / 2))
            self._tick()

    def _tick(self) -> None:
        for heartbeat in tuple(self._watched):
            heartbeat.look()
        if self._forget_settled() or self._watched:
            self._needed_at = time.monotonic()
        elif connection.connection is not None and time.monotonic() > self._needed_at + KEEP_SECONDS:
            connection.close()

    def _forget_settled(self) -> bool:
        if not drain.in_child() or not after_commit.has_settled():
            return False
        try:
            _connect_impatiently()
        except (DatabaseError, InterfaceError):
            return False  # the database is away; they stay for the next time
        after_commit.forget_settled()
        return True


def _connect_impatiently() -> None:
    """Open this thread's connection, if it is not, so that no beat waits for a row until the next is due."""
    if connection.connection is None:
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = %s", [int(settings.HEARTBEAT_SECONDS * 1_000 / 4)])


_pulse = Pulse()
