"""Notice in the worker's parent that it takes nothing although it could, and end it so that another begins.

A consumer can live and be deaf: its subscription is gone, its connection is half open, its event loop hangs.
Nothing raises then. So a thread of its own looks from outside: does a child have time, do messages wait in a
queue of ours, and has none of them come in? It asks the broker over another connection, and ends the worker
without the event loop if it must. What the children are at is finished or handed back, as at any other end.
"""

import logging
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from billiard import active_children
from celery.signals import worker_ready
from celery.worker import state
from django.conf import settings

from operations import metrics
from operations.publish import BrokerAway, Publisher
from tasks import drain, holds

log = logging.getLogger(__name__)

LOOKS = 6  # so many in a row must find the same: it is no chance, and no pause of the whole machine
EXIT_CODE = 1  # a supervisor starts it again

_heard: Counter[str] = Counter()  # messages that came in, by queue
_broker = Publisher()  # a connection of this thread's own: others may hang


def hear(message: Any) -> None:
    """Note that a message came in; in the event loop, whatever is in it."""
    routing_key = str((message.delivery_info or {}).get("routing_key"))
    _heard[routing_key.removeprefix(settings.QUEUE_PREFIX)] += 1


class Watch:
    """Looks at the queues of one worker."""

    def __init__(self, queues: Iterable[str], *, slots: int, depth: Callable[[str], int]) -> None:
        """Take what the worker serves, how many children it has, and how to count what waits in a queue."""
        self._looks = dict.fromkeys(queues, 0)  # in a row that found it deaf
        self._heard: dict[str, int] = {}
        self._slots = slots
        self._depth = depth

    def look(self) -> str | None:
        """Give a queue from which nothing was taken for LOOKS looks, though it could have been."""
        has_time = len(holds.every()) < self._slots
        for queue in self._looks:
            heard = _heard[queue]
            is_deaf = has_time and heard == self._heard.get(queue) and self._waits(queue)
            self._looks[queue] = self._looks[queue] + 1 if is_deaf else 0
            self._heard[queue] = heard
            if not is_deaf:
                metrics.WORKER_LAST_POLL.labels(queue).set(time.time())
        return next((queue for queue, looks in self._looks.items() if looks >= LOOKS), None)

    def _waits(self, queue: str) -> bool:
        """Say whether a message waits; while the broker is away, nobody is to blame for taking none."""
        try:
            return self._depth(queue) > 0
        except BrokerAway:
            return False


def end_worker(queue: str, *, end_now: Callable[[], None]) -> None:
    """Have the worker drain and end with EXIT_CODE; if its event loop does not get to it, `end_now`."""
    fields = {"queue": queue, "silent_seconds": settings.STUCK_AFTER_SECONDS}
    log.error("worker.stuck", extra=fields)
    drain.begin()
    state.should_stop = EXIT_CODE  # type: ignore[assignment]  # what Celery's own signal handler sets
    time.sleep(settings.GRACE_SECONDS)
    log.error("worker.stuck_for_good", extra=fields)
    end_now()


def _end_now() -> None:
    """End this process and its children; they have handed back what they held."""
    for pid in [child.pid for child in active_children() if child.pid]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os._exit(EXIT_CODE)


def _go_on(watch: Watch) -> None:
    while not drain.begun():
        time.sleep(settings.STUCK_AFTER_SECONDS / LOOKS)
        queue = watch.look()
        if queue is not None and not drain.begun():
            end_worker(queue, end_now=_end_now)


@worker_ready.connect
def _begin(sender: Any, **kwargs: Any) -> None:
    if settings.STUCK_AFTER_SECONDS:
        slots = sender.controller.concurrency or 1
        queues = sorted(name.removeprefix(settings.QUEUE_PREFIX) for name in settings.CELERY_TASK_QUEUES)
        watch = Watch(queues, slots=slots, depth=_broker.depth)
        threading.Thread(target=_go_on, args=(watch,), name="stuck", daemon=True).start()
