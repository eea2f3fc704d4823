"""Send a canary through every queue and see whether it comes out: the relay sends, a worker's child answers.

It goes the way of a hint, through the broker and a worker's parent to a child and its database connection. It
is no operation, so nothing is accepted, kept in the history or counted in its name: decision 0012.
"""

import logging
import time

from django.conf import settings
from django.db import DatabaseError, InterfaceError

from config.celery import app
from operations import metrics, statements
from operations.certainty import afresh
from operations.publish import Hint, publisher

log = logging.getLogger(__name__)

SING = "canary.sing"
GIVEN_UP_PERIODS = 10  # one that is not back by then is lost, however many messages wait before it
LOOKS = 4  # a period: so an answer is seen, and a queue without one, while it is news

# One at a time: the next follows when the last has come through, or cannot, for its queue is empty.
LATE = """
    SELECT queue FROM operations_canary
    WHERE queue = ANY(%(queues)s::text[])
        AND sent_at < clock_timestamp() - make_interval(secs => %(period)s)
        AND (answered_at IS NULL OR answered_at < sent_at)"""
TAKE = """
    INSERT INTO operations_canary AS c (queue, token)
    SELECT queue, gen_random_uuid() FROM unnest(%(queues)s::text[]) AS queue
    ON CONFLICT (queue) DO UPDATE SET token = EXCLUDED.token, sent_at = clock_timestamp()
    WHERE c.sent_at < clock_timestamp() - make_interval(secs => %(period)s)
        AND (c.answered_at >= c.sent_at OR c.queue = ANY(%(lost)s::text[])
            OR c.sent_at < clock_timestamp() - make_interval(secs => %(given_up)s))
    RETURNING queue, token"""
ANSWER = (
    "UPDATE operations_canary SET answered_at = clock_timestamp() WHERE token = %(token)s RETURNING queue"
)
UNSENT = """
    UPDATE operations_canary SET sent_at = clock_timestamp() - make_interval(secs => %(given_up)s)
    WHERE token = %(token)s RETURNING queue"""
SEEN = "SELECT queue, extract(epoch FROM COALESCE(answered_at, began_at))::float8 FROM operations_canary"

_look_at = 0.0  # on this process's monotonic clock


def send() -> int:
    """Send a canary through each queue whose last is old and over; a duty of every relay.

    Raises:
        BrokerAway: nobody can say what became of those that did not come through.
    """
    global _look_at
    period = settings.CANARY_PERIOD_SECONDS
    if not period or time.monotonic() < _look_at:
        return 0
    _look_at = time.monotonic() + period / LOOKS
    queues = sorted({queue for group in settings.WORKER_GROUPS.values() for queue in group})
    _show(queues)
    late = [str(queue) for (queue,) in statements.rows(LATE, {"period": period, "queues": queues})]
    lost = [queue for queue in late if publisher.depth(queue) == 0]
    given_up = GIVEN_UP_PERIODS * period
    taken = statements.rows(TAKE, {"queues": queues, "period": period, "lost": lost, "given_up": given_up})
    return sum(_send(str(queue), token, given_up) for queue, token in taken)


def _send(queue: str, token: object, given_up: float) -> bool:
    """Send one; what could not be sent is given up, so that the next look sends it."""
    sent = publisher.send(Hint(SING, queue, str(token), {}))
    if not sent:
        statements.rows(UNSENT, {"token": token, "given_up": given_up})
    return sent


@app.task(name=SING, acks_late=True, ignore_result=True)
def sing(token: str) -> None:
    """Say that a canary came through. If the database is away, the next one says it."""
    try:
        answered = afresh(lambda: statements.row(ANSWER, {"token": token}))
    except (DatabaseError, InterfaceError) as error:
        log.warning("canary.unheard", extra={"error": type(error).__name__})
        return
    log.debug("canary.heard", extra={"queue": answered and answered[0]})


def _show(queues: list[str]) -> None:
    for queue, at in statements.rows(SEEN, {}):
        if queue in queues:
            metrics.CANARY_LAST_SUCCESS.labels(queue).set(at)
