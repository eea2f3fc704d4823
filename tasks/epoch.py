"""Know when the broker has lost what it held, and have one relay at a time count what it lacks.

Two relays that count at once would each send what is missing. So counting is a turn, which a relay keeps from
round to round, and another takes over when it was silent for a while or cannot reach the broker.
"""

import logging
import os
import socket
import time

from django.conf import settings

from operations import statements
from operations.broker import EPOCH, ON_REDIS
from operations.publish import BrokerAway, publisher

log = logging.getLogger(__name__)

TAKE_TURN = """
    INSERT INTO operations_brokerepoch AS e (id, value, counted_by, counted_until)
    VALUES (1, gen_random_uuid(), %(relay)s, clock_timestamp() + make_interval(secs => %(turn)s))
    ON CONFLICT (id) DO UPDATE SET counted_by = EXCLUDED.counted_by, counted_until = EXCLUDED.counted_until
    WHERE e.counted_by = EXCLUDED.counted_by OR e.counted_until < clock_timestamp()
        OR e.counted_until > EXCLUDED.counted_until  -- the clock was set back since
    RETURNING value, xmax = 0"""
HAND_ON = """
    UPDATE operations_brokerepoch SET counted_until = clock_timestamp()
    WHERE counted_by = %(relay)s RETURNING id"""
CHANGE = """
    UPDATE operations_brokerepoch SET value = gen_random_uuid(), since = clock_timestamp()
    WHERE value = %(value)s RETURNING value"""
# NULL: no loss was ever noticed, or only by a clock that was set back since.
SINCE = "(SELECT since FROM operations_brokerepoch WHERE since <= clock_timestamp())"

BELIEVED_AFTER_SECONDS = 1.0  # longer than RabbitMQ needs to choose another leader where all is well
_missed: tuple[str, float] | None = None  # an epoch that is looked for in vain, and since when (monotonic)


def take_turn() -> bool:
    """Say whether this relay is the one that counts now, and note a loss: what was published before is lost.

    Raises:
        BrokerAway: it was this one's turn, and the broker does not answer: another may be luckier.
    """
    turn = {"relay": _name(), "turn": settings.REPUBLISH_AFTER_SECONDS}
    found = statements.row(TAKE_TURN, turn)
    if found is None:
        return False
    value, is_new = found
    try:
        _look_at_broker(str(value), is_new=bool(is_new))
    except BrokerAway:
        hand_on()
        raise
    return True


def hand_on() -> None:
    """Let another relay count."""
    statements.rows(HAND_ON, {"relay": _name()})


def _look_at_broker(value: str, *, is_new: bool) -> None:
    if is_new:
        publisher.plant(_queue(value))
    elif _is_missing(value):
        changed = statements.row(CHANGE, {"value": value})
        if changed is not None:
            log.warning("broker.contents_lost", extra={"epoch": value})
            publisher.plant(_queue(changed[0]))


def _is_missing(value: str) -> bool:
    """Say whether the broker has lost the epoch.

    Redis is believed at once. RabbitMQ says the same of a queue whose leader does not answer it in time, so
    it must have said nothing else for a while.
    """
    global _missed
    if publisher.depth(_queue(value)) > 0:
        _missed = None
        return False
    if _missed is None or _missed[0] != value:
        _missed = value, time.monotonic()
    return ON_REDIS or time.monotonic() - _missed[1] >= BELIEVED_AFTER_SECONDS


def _queue(value: object) -> str:
    return f"{EPOCH}{value}"


def _name() -> str:
    return f"{socket.gethostname()}/{os.getpid()}"
