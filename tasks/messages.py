"""What a message must be for Celery to see it: small, and asking one known task to look at one thing.

Celery 5.7.0 trusts a message. One that isn't JSON ends the worker, a task name that is a list ends it at
every start, and one without an id makes it reconnect for ever. So each is checked before.
"""

import re
from collections.abc import Callable, Container
from typing import Any

from celery.app.task import Context
from kombu.exceptions import DecodeError

from operations.models import Fault

LONGEST_BODY = 16 * 1_024  # bytes; ours have about two hundred
LONGEST_TEXT = 300  # characters of a header that is read
CONTENT = ("application/json", "utf-8")
SUBJECT = re.compile(r"[0-9a-fA-F-]{36}|[0-9]{1,19}")  # an operation's id, or a dead letter's
TEXTS = ("lang", "root_id", "parent_id", "argsrepr", "kwargsrepr", "origin")  # what events and Flower show

# What Celery would take for an order and not for a hint: due times, limits, callbacks, retries. Such a header
# is not seen by Celery, and no fault. A header that Celery doesn't know may be a newer release's, and stays.
ORDERS = frozenset(dir(Context)) - {"id", "root_id", "parent_id", "origin", "correlation_id"}

WAS_COMPRESSED = "was_compressed"  # what the header `compression` is called once it does nothing


def fault_of(message: Any, *, tasks: Container[str]) -> Fault | None:
    """Say what is wrong with a message, if anything is."""
    for is_wrong, fault in CHECKS:
        if is_wrong(message):
            return fault
    return None if message.headers["task"] in tasks else Fault.UNKNOWN_TASK


def without_orders(headers: dict[str, Any]) -> dict[str, Any]:
    """Give the headers that say something, without those that Celery would obey."""
    return {name: value for name, value in headers.items() if name not in ORDERS}


def _is_large(message: Any) -> bool:
    return len(message.body or b"") > LONGEST_BODY


def _has_no_headers(message: Any) -> bool:
    return not isinstance(message.headers, dict)


def _was_compressed(message: Any) -> bool:
    return WAS_COMPRESSED in message.headers


def _has_other_content(message: Any) -> bool:
    return (message.content_type, str(message.content_encoding).lower()) != CONTENT


def _has_no_task(message: Any) -> bool:
    return not _is_text(message.headers.get("task"))


def _has_no_id(message: Any) -> bool:
    return not _is_text(message.headers.get("id"))


def _has_bad_headers(message: Any) -> bool:
    values = [message.headers.get(name) for name in TEXTS]
    return not all(value is None or value == "" or _is_text(value) for value in values)


def _is_not_json(message: Any) -> bool:
    try:
        message.decode()  # what is decoded, the message keeps for Celery
    except DecodeError:
        return True
    return False


def _asks_otherwise(message: Any) -> bool:
    """Say whether its body is not `[[subject], {}, {callbacks: null, …}]`."""
    match message.payload:
        case [[str(subject)], {**named}, {**orders}] if not named and not any(orders.values()):
            return SUBJECT.fullmatch(subject) is None
    return True


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= LONGEST_TEXT


CHECKS: tuple[tuple[Callable[[Any], bool], Fault], ...] = (
    (_is_large, Fault.TOO_LARGE),
    (_has_no_headers, Fault.BAD_HEADERS),
    (_was_compressed, Fault.COMPRESSED),
    (_has_other_content, Fault.WRONG_CONTENT_TYPE),
    (_has_no_task, Fault.NO_TASK),
    (_has_no_id, Fault.NO_ID),
    (_has_bad_headers, Fault.BAD_HEADERS),
    (_is_not_json, Fault.NOT_JSON),
    (_asks_otherwise, Fault.WRONG_ARGUMENTS),
)
