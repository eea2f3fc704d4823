"""Where messages come in, below Celery: what kombu itself would choke on is made harmless there.

kombu 5.7.0 reads what it takes from Redis as JSON of a certain shape, and raises in the worker's event loop
when it is not; and on every transport it unpacks a compressed body while it makes the message, however much
comes out. What can't come in as it is comes in sealed: as a small message that says what was wrong.
"""

import base64
import hashlib
import json
import uuid
from collections.abc import Callable
from typing import Any

from kombu.transport import pyamqp, virtual
from kombu.utils.json import loads

from operations.models import Fault
from tasks.messages import LONGEST_BODY, WAS_COMPRESSED

LONGEST_ITEM = 2 * LONGEST_BODY  # bytes in Redis: a body in base64, headers, properties
HEAD_BYTES = 200  # of what can't be read: its kind shows in the first few
SEALED = f"application/x-sealed-{uuid.uuid4().hex}"  # a content type that no message can claim by itself


def guard(connection: Any) -> None:
    """Look at what comes in through a connection before kombu does. Before the first message is asked for."""
    channel = connection.default_channel
    if isinstance(channel, pyamqp.Channel):
        channel.Message = StillCompressed
    elif isinstance(channel, virtual.Channel) and hasattr(channel, "client"):
        channel.client.set_response_callback("BRPOP", _opener(getattr(channel, "global_keyprefix", "")))
        kind = type(channel)  # what `celery inspect` asks comes by a channel that is not made yet
        connection.transport.Channel = type(kind.__name__, (kind,), {"Message": FromAnybody})


class StillCompressed(pyamqp.Message):
    """A message from RabbitMQ whose body stays as it came: a few bytes may stand for gigabytes."""

    def __init__(self, msg: Any, channel: Any = None, **options: Any) -> None:
        """Rename the header by which kombu would unpack the body."""
        headers = msg.properties.get("application_headers")
        if isinstance(headers, dict) and "compression" in headers:
            headers[WAS_COMPRESSED] = headers.pop("compression")
        super().__init__(msg, channel=channel, **options)


class FromAnybody(virtual.Message):
    """A question to all workers, as Flower and `celery inspect` ask them; what is none, Celery logs."""

    def __init__(self, payload: Any, channel: Any = None, **options: Any) -> None:
        """Take what Redis gave, whatever its shape is."""
        fault = _fault_in(payload)
        if fault is not None:
            payload = json.loads(sealed(repr(payload), fault, queue=""))
        super().__init__(payload, channel=channel, **options)


def _opener(prefix: str) -> Callable[[Any], Any]:
    """Give what redis-py is to do with the answer to a BRPOP: a pair of key and item, or nothing."""

    def opened(answer: Any) -> Any:
        if not answer:
            return None
        key, item = answer
        fault = _fault_of(item)
        return (key, item if fault is None else sealed(item, fault, queue=_text(key).removeprefix(prefix)))

    return opened


def sealed(item: bytes | str, fault: Fault, *, queue: str) -> str:
    """Give a message that kombu can read, about one that it can't."""
    raw = item if isinstance(item, bytes) else item.encode(errors="surrogatepass")
    return json.dumps(
        {
            "body": base64.b64encode(raw[:HEAD_BYTES]).decode(),
            "content-type": SEALED,
            "content-encoding": "binary",
            "headers": {"fault": fault, "size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()},
            "properties": {
                "delivery_tag": str(uuid.uuid4()),
                "delivery_info": {"exchange": "", "routing_key": queue},
                "body_encoding": "base64",
            },
        }
    )


def _fault_of(item: bytes | str) -> Fault | None:
    if len(item) > LONGEST_ITEM:
        return Fault.TOO_LARGE
    try:
        return _fault_in(_parsed(item))
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError):
        return Fault.NOT_AN_ENVELOPE  # what JSON, or one of kombu's typed values in it, may raise


def _parsed(item: bytes | str) -> Any:
    """Parse as kombu will, which is slow, only if it may come to another result."""
    marked = b'"__type__"' in item if isinstance(item, bytes) else '"__type__"' in item
    return loads(item) if marked or isinstance(item, str) else json.loads(item.decode())


def _fault_in(envelope: Any) -> Fault | None:
    match envelope:
        case {
            "properties": {"delivery_tag": str(), "delivery_info": {"exchange": str(), "routing_key": str()}}
        }:
            return _fault_of_parts(envelope, envelope["properties"])
    return Fault.NOT_AN_ENVELOPE


def _fault_of_parts(envelope: dict[str, Any], properties: dict[str, Any]) -> Fault | None:
    headers, body = envelope.get("headers"), envelope.get("body")
    if headers is not None and not isinstance(headers, dict):
        return Fault.BAD_HEADERS
    if headers and ("compression" in headers or WAS_COMPRESSED in headers):
        return Fault.COMPRESSED
    if body is not None and not isinstance(body, str):
        return Fault.NOT_AN_ENVELOPE
    return _fault_of_encoding(body, properties.get("body_encoding"))


def _fault_of_encoding(body: str | None, encoding: object) -> Fault | None:
    if encoding not in (None, "base64"):
        return Fault.NOT_AN_ENVELOPE
    if encoding and body:
        try:
            base64.b64decode(body)
        except ValueError:
            return Fault.NOT_AN_ENVELOPE
    return None


def _text(key: bytes | str) -> str:
    return key.decode() if isinstance(key, bytes) else key
