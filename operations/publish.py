"""The one door to the broker: send the hint that an operation waits, or learn quickly that it could not."""

import logging
import os
import threading
import time
import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.conf import settings

from operations.broker import FAULTS, Line
from operations.models import Operation

log = logging.getLogger(__name__)

# Note [Messages are hints]
# A message says "a worker should look at this operation", and nothing is decided from it. So losing one,
# sending it twice or sending it late costs time, never truth; and a publish that fails is not an error but
# work for the relay.
#
# It goes to the default exchange under the queue's name: a named exchange forgets its bindings when the
# broker is flushed, and from then on drops what it is given without a word.

BODY_TAIL = ', {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'

PLENTY_SECONDS = 0.05  # how long a full queue is believed to be full; asking costs as much as sending

DEAD_LETTER = "dead_letter"  # the queue of reports
REPORT = "dead_letter.report"  # the task that makes one


class Hint(NamedTuple):
    """What a message says: that a task should look at one thing."""

    task: str
    queue: str
    subject_id: str  # of the operation or dead letter
    headers: dict[str, Any]


class BrokerAway(Exception):
    """The broker could not be asked."""


# Note [Hints enough]
# A message says that something waits, and is forgotten once a worker has looked. When a queue holds
# PLENTY_OF_MESSAGES, one more tells nobody anything and costs as much as a short run: to send, to receive, to
# hand to a child. So what is accepted then is only written down; workers that see that they are behind take
# it by the handful (tasks/backlog.py). Once the queue is short, one more message says that there may be more
# (operations/reminders.py), and what all of them leave the relay publishes.


class Publisher:
    """A broker connection of one process (one at a time uses it) that gives up fast and then rests."""

    def __init__(self) -> None:
        """Connect at the first message."""
        self._lock = threading.Lock()
        self._line: Line | None = None
        self._rests: dict[str, float] = {}  # by queue, "" for all, and until when (time.monotonic())
        self._believed: dict[str, int] = {}  # messages in a queue: what it held when asked, and ours since
        self._plenty_until: dict[str, float] = {}  # time.monotonic()

    def send(self, hint: Hint) -> bool:
        """Send one message, bounded by PUBLISH_TIMEOUT_SECONDS. Say whether the broker took it."""
        if self.rests(hint.queue):
            return False
        if not self._lock.acquire(timeout=settings.PUBLISH_TIMEOUT_SECONDS):
            return False
        try:
            return self._try(hint)
        finally:
            self._lock.release()

    def rests(self, queue: str) -> bool:
        """Say whether the broker, or this queue of it, has just failed and is left alone for a while."""
        return time.monotonic() < max(self._rests.get("", 0.0), self._rests.get(queue, 0.0))

    def has_plenty(self, queue: str, *, ask: bool = True) -> bool:
        """Say whether so many messages wait in `queue` that none need be added. See Note [Hints enough].

        Asks the broker only when this process alone may have sent so many, and waits for nobody else who
        talks to it. Without `ask` it says what it knows.
        """
        now = time.monotonic()
        if now < self._plenty_until.get(queue, 0.0):
            return True
        if self._believed.get(queue, 0) < settings.PLENTY_OF_MESSAGES or self.rests(queue) or not ask:
            return False
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._believed[queue] = self._ask_depth(queue)
        except BrokerAway:
            self._rest(queue)
            return False
        finally:
            self._lock.release()
        if self._believed[queue] < settings.PLENTY_OF_MESSAGES:
            return False
        self._plenty_until[queue] = now + PLENTY_SECONDS
        return True

    def depth(self, queue: str) -> int:
        """Count the messages that wait in `queue`; one that nobody has declared yet holds none.

        Raises:
            BrokerAway: it does not answer.
        """
        with self._lock:
            return self._ask_depth(queue)

    def plant(self, queue: str) -> None:
        """Leave one message in a queue that nobody reads. While it is there, the broker has lost nothing.

        Raises:
            BrokerAway: it is not there now.
        """
        with self._lock:
            try:
                self._connected().send(queue, {"body": "", "delivery_mode": 2})
            except FAULTS as error:
                self._hang_up()
                raise BrokerAway(f"the broker does not answer: {type(error).__name__}") from error

    def _ask_depth(self, queue: str) -> int:
        try:
            return self._connected().count(queue)
        except FAULTS as error:
            self._hang_up()
            raise BrokerAway(f"the broker does not answer: {type(error).__name__}") from error

    def forget(self) -> None:
        """Drop the connection, and a lock that a thread of the parent may hold, as after a fork."""
        self._lock = threading.Lock()
        self._line = None  # not hung up: its socket is the parent's, too
        self._rests.clear()
        self._believed.clear()
        self._plenty_until.clear()

    def hang_up(self) -> None:
        """Close the connection, and know nothing of the broker any more."""
        self._hang_up()
        self.forget()

    def _try(self, hint: Hint) -> bool:
        resting = ""
        try:
            line = self._connected()
            resting = hint.queue  # who is connected has trouble with this one alone, or finds out at the next
            line.send(hint.queue, _envelope(hint))
            self._believed[hint.queue] = self._believed.get(hint.queue, 0) + 1
        except FAULTS as error:
            self._hang_up()
            self._rest(resting)
            log.warning("message.unsent", extra={"about": hint.subject_id, "error": type(error).__name__})
            return False
        return True

    def _rest(self, queue: str) -> None:
        self._rests[queue] = time.monotonic() + settings.PUBLISH_PAUSE_SECONDS

    def _connected(self) -> Line:
        if self._line is None:
            self._line = Line()
        return self._line

    def _hang_up(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.hang_up()


def _envelope(hint: Hint) -> dict[str, Any]:
    """Give what Celery's message protocol 2 needs, ids only. Source: Celery docs, "Message Protocol"."""
    message_id = str(uuid.uuid4())
    return {
        "body": f'[["{hint.subject_id}"]{BODY_TAIL}',
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "correlation_id": message_id,
        "delivery_mode": 2,
        "headers": {
            "lang": "py",
            "task": hint.task,
            "id": message_id,
            "root_id": message_id,
            "parent_id": None,
            "group": None,
            "argsrepr": f"('{hint.subject_id}',)",
            "kwargsrepr": "{}",
            "ignore_result": True,
            **hint.headers,
        },
    }


publisher = Publisher()
os.register_at_fork(after_in_child=publisher.forget)


def publish(operation: Operation, *, released: Sequence[int] = (), probe: bool = False) -> bool:
    """Tell a worker to look at `operation`; outside transactions only. False: the relay will.

    A message that could not be sent is marked as such, so the relay need not wait to miss it. `released` are
    the holds that let it pass.
    """
    carried: dict[str, Any] = {
        **({"released": list(released)} if released else {}),
        **({"probe": True} if probe else {}),
    }
    sent = publisher.send(hint_of(operation, **carried))
    if not sent:
        Operation.objects.filter(id=operation.id).update(published_at=None)
    return sent


def hint_of(operation: Operation, **carried: Any) -> Hint:
    """Give the hint that an operation waits, with what its message carries in its headers."""
    known: dict[str, Any] = {
        "schema_version": operation.schema_version,
        "request_id": operation.request_id,
        "correlation_id": operation.correlation_id,
    }
    return Hint(operation.job_type, operation.job_type, str(operation.id), {**known, **carried})


def ask_for_report(dead_letter_id: int) -> bool:
    """Tell a worker to report a dead letter; outside transactions only. False: the relay asks again."""
    return publisher.send(Hint(REPORT, DEAD_LETTER, str(dead_letter_id), {}))
