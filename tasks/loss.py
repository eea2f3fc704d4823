"""Notice in the worker's parent that a child has died, and free at once what it held.

The parent's event loop must not wait for a database, so one thread watches the children and another frees.
Celery notices as well, up to five seconds later; only Celery knows of a hard limit, and tells beforehand.
"""

import logging
import os
import queue
import signal
import threading
import time
from typing import Any, NamedTuple
from uuid import UUID

from billiard.common import human_status
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery.signals import worker_ready
from celery.worker.request import Request
from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection

from operations import jobs
from tasks import holds, relay
from tasks.holds import Hold

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
LONGEST_DEATH_SECONDS = 2.0  # a child at its hard limit has a tenth of a second before it is killed
# A child that is late is given so long to notice it, after a pause of the whole machine for example.
PATIENCE_SECONDS = 1.0
EXITED_IN_ORDER = f": {human_status(0)} "  # in the text of a WorkerLostError, the only place that says it


class Loss(NamedTuple):
    """A child that died, or is about to, while it ran an operation."""

    operation_id: str
    worker: str  # as in claimed_by
    pid: int
    timed_out: bool = False  # it is ended because its run has reached the hard limit


# Note [Told once]
# Celery logs an error for every child that ends in a run, and Sentry makes an event of it. Where we ended the
# child, or it ended itself when it had handed its operation back, the cause is logged already, and Celery's
# line is left out. A child that ends with its claim, or by a signal of somebody else's, is an error.

_ended: set[int] = set()  # children that we have ended, or Celery has at a hard limit
_bereft: set[int] = set()  # children that ended and still held an operation
_losses: queue.SimpleQueue[Loss] = queue.SimpleQueue()
_thread: threading.Thread | None = None


class WatchedRequest(Request):
    """A request that tells when the child that served it died, or is ended."""

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        """Pass the news on before Celery deals with its message; `return_ok` makes it say nothing."""
        cause = _cause(exc_info)
        if isinstance(cause, (WorkerLostError, SystemExit)):
            self._tell(timed_out=False)
        told = self._is_told(cause)
        for pids in (_ended, _bereft):
            pids.discard(int(self.worker_pid or 0))
        return super().on_failure(exc_info, send_failed_event, return_ok or told)

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        """Pass the news on; right after this Celery ends the child."""
        if not soft:
            self._tell(timed_out=True)
        return super().on_timeout(soft, timeout)

    def _is_told(self, cause: BaseException) -> bool:
        """Say whether we have logged why this child ended: see Note [Told once]."""
        pid = int(self.worker_pid or 0)
        bereft = pid in _bereft or any(hold.pid == pid for hold in holds.every())
        left_in_order = EXITED_IN_ORDER in str(cause) and not bereft
        return isinstance(cause, TimeLimitExceeded) or pid in _ended or left_in_order

    def _tell(self, *, timed_out: bool) -> None:
        if self.worker_pid and self.args and _is_id(self.args[0]):
            worker = f"{self.hostname}/{self.worker_pid}"
            operation_id = holds.held_by(int(self.worker_pid)) or self.args[0]
            _tell(Loss(str(operation_id), worker, int(self.worker_pid), timed_out))


class Watch:
    """Looks after the children of one worker."""

    def __init__(self, hostname: str) -> None:
        """Take the worker's name, as in claimed_by."""
        self._hostname = hostname
        self._late: dict[Hold, int] = {}  # since how many looks

    def go_on(self) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            self.look(time.monotonic())

    def look(self, now: float) -> None:
        """Tell of the dead, and end who is late and still is after a while in which we were awake."""
        held = holds.every()
        for hold in held:
            if has_ended(hold.pid):
                _bereft.add(hold.pid)
                holds.forget(hold.pid)
                _tell(Loss(str(hold.operation_id), f"{self._hostname}/{hold.pid}", hold.pid))
        self._late = {hold: self._late.get(hold, 0) + 1 for hold in held if _is_late(hold, now)}
        for hold, looks in self._late.items():
            if looks > PATIENCE_SECONDS / LOOK_SECONDS and not has_ended(hold.pid):
                log.error("worker.child_overran_its_lease", extra=hold._asdict())
                _ended.add(hold.pid)
                os.kill(hold.pid, signal.SIGKILL)


def is_news(record: logging.LogRecord) -> bool:
    """Leave out Celery's line about the hard limit of a run: on_timeout has told. See Note [Told once]."""
    if not str(record.msg).startswith("Hard time limit") or not isinstance(record.args, tuple):
        return True
    return str(record.args[1]) not in {job.name for job in jobs.every()}


logging.getLogger(Request.__module__).addFilter(is_news)


@worker_ready.connect
def _begin(sender: Any, **kwargs: Any) -> None:
    threading.Thread(target=Watch(sender.hostname).go_on, name="watch", daemon=True).start()


# Note [Who cannot end itself is ended]
# A lease that is over means that another may be at work. A run whose lease cannot be renewed ends itself, by
# way of its heartbeat thread; but a run in C code that keeps the interpreter for itself has no other thread.
# What it would do next, to the outside too, it would do beside its successor. So its parent ends it before.


def _is_late(hold: Hold, now: float) -> bool:
    """Say whether so little is left of its lease that it should have been renewed, and wasn't."""
    return hold.until < now + PATIENCE_SECONDS + settings.HEARTBEAT_SECONDS / 4


def _cause(exc_info: Any) -> BaseException:
    return getattr(exc_info.exception, "exc", exc_info.exception)


def _is_id(value: object) -> bool:
    try:
        UUID(str(value))
    except ValueError:
        return False
    return True


def _tell(loss: Loss) -> None:
    global _thread
    _losses.put(loss)
    if _thread is None or not _thread.is_alive():
        _thread = threading.Thread(target=_free_losses, name="losses", daemon=True)
        _thread.start()


def _free_losses() -> None:
    while True:
        loss = _losses.get()
        _wait_for_the_end(loss.pid)
        try:
            freed = relay.free_lost(loss.operation_id, loss.worker, timed_out=loss.timed_out)
            level = logging.WARNING if freed else logging.INFO  # told twice, or it had handed back
            log.log(level, "worker.child_lost", extra={**loss._asdict(), "freed": freed})
        except (DatabaseError, InterfaceError):
            log.warning("worker.child_lost", extra={**loss._asdict(), "freed": False})  # the lease will end
        finally:
            connection.close()  # no child is forked with it


def _wait_for_the_end(pid: int) -> None:
    """Wait until a child has ended, so that nothing is started beside it; a bounded time."""
    give_up_at = time.monotonic() + LONGEST_DEATH_SECONDS
    while not has_ended(pid) and time.monotonic() < give_up_at:
        time.sleep(LOOK_SECONDS / 5)


def has_ended(pid: int) -> bool:
    """Say whether a child of this process has ended; its status is left for whoever started it."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    except ChildProcessError:  # its end has been seen to
        return True
