"""Send one hint for many: what was accepted with no message of its own is told of a moment later.

See Note [Hints enough] in operations/publish.py. Who reads the reminder takes all that waits unsent
(tasks/backlog.py). A process that ends before it reminds leaves that to the relay.
"""

import os
import threading
import time

from django.conf import settings

from operations.models import Operation
from operations.publish import Hint, hint_of, publisher

PAUSE_SECONDS = 0.05  # the most that an operation waits for want of a message, while its queue is short


class Reminders:
    """What one process owes its queues: one hint each, however many operations it is for."""

    def __init__(self) -> None:
        """Owe nothing, and start no thread before something is owed."""
        self.forget()

    def forget(self) -> None:
        """Owe nothing any more, as after a fork: the thread is the parent's."""
        self._lock = threading.Lock()
        self._owed: dict[str, tuple[Hint, float]] = {}  # by queue, and until when (time.monotonic())
        self._thread: threading.Thread | None = None

    def owe(self, operation: Operation) -> None:
        """Remind the operation's queue soon, if no message that was sent before brings a worker to it."""
        until = time.monotonic() + settings.RELAY_PERIOD_SECONDS  # from then on the relay has seen it
        with self._lock:
            self._owed[operation.job_type] = hint_of(operation, more=True), until
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._go_on, name="reminders", daemon=True)
                self._thread.start()

    def _go_on(self) -> None:
        time.sleep(PAUSE_SECONDS)
        while owed := self._take():
            self._remind(owed)
            time.sleep(PAUSE_SECONDS)

    def _take(self) -> dict[str, tuple[Hint, float]]:
        with self._lock:
            if self._thread is not threading.current_thread():
                return {}  # forgotten meanwhile
            owed, self._owed = self._owed, {}
            if not owed:
                self._thread = None  # who owes something from now on starts another
        return owed

    def _remind(self, owed: dict[str, tuple[Hint, float]]) -> None:
        """Send what is owed to queues that are short by now; go on owing the others."""
        for queue, (hint, until) in owed.items():
            if not publisher.has_plenty(queue):
                publisher.send(hint)
            elif time.monotonic() < until:
                with self._lock:
                    self._owed.setdefault(queue, (hint, until))


reminders = Reminders()
os.register_at_fork(after_in_child=reminders.forget)
