"""Messages as they lie in Redis, made by hand: a good one, and each way in which one can be bad."""

import base64
import json
import pickle
import uuid
import zlib
from typing import Any

QUEUE = "probe.effect"
EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
TYPED_JUNK = {"__type__": "uuid", "__value__": "not one"}


def body(*args: Any, named: Any = None, **orders: Any) -> bytes:
    return json.dumps([list(args), named or {}, {**EMBED, **orders}]).encode()


def envelope(raw: bytes | None = None, *, properties: Any = None, parts: Any = None, **headers: Any) -> bytes:
    """Give a message of protocol 2 about an operation nobody has, with some headers or parts replaced."""
    id = str(uuid.uuid4())
    raw = body(id) if raw is None else raw
    usual = {"lang": "py", "task": QUEUE, "id": id, "root_id": id, "parent_id": None, "group": None}
    return json.dumps(
        {
            "body": base64.b64encode(raw).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {**usual, **headers},
            "properties": {
                "correlation_id": id,
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": QUEUE},
                "priority": 0,
                "body_encoding": "base64",
                "delivery_tag": id,
                **(properties or {}),
            },
            **(parts or {}),
        }
    ).encode()


def without(name: str, *, where: str = "") -> bytes:
    """Give a message that lacks one of its parts, or one of its headers or properties."""
    message = json.loads(envelope())
    del (message[where] if where else message)[name]
    return json.dumps(message).encode()


def protocol_1() -> bytes:
    """Give a message as Celery 3 wrote it: all in the body."""
    task = {"task": QUEUE, "id": str(uuid.uuid4()), "args": [str(uuid.uuid4())], "kwargs": {}, "retries": 0}
    return envelope(json.dumps(task).encode(), parts={"headers": {}})


BOMB = base64.b64encode(zlib.compress(bytes(50_000_000), 9)).decode()  # 50 MB in 50 kB
DEEP = b"[" * 8_000 + b"]" * 8_000

# What Redis holds, and what the evidence calls it.
BAD: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "not_an_envelope"),
    "no JSON": (b"hello", "not_an_envelope"),
    "no text": (b"\xff\xfe\x00\x80", "not_an_envelope"),
    "a pickle alone": (pickle.dumps({"task": QUEUE}), "not_an_envelope"),
    "a list": (b"[1, 2]", "not_an_envelope"),
    "a number": (b"7", "not_an_envelope"),
    "an empty object": (b"{}", "not_an_envelope"),
    "deep JSON": (DEEP, "not_an_envelope"),
    "a long number": (b"9" * 5_000, "not_an_envelope"),
    "a typed value that is none": (envelope(x=TYPED_JUNK), "not_an_envelope"),
    "a typed value of no type": (
        envelope(x={"__type__": "?", "__value__": 1}),
        "not_an_envelope",
    ),
    "no properties": (without("properties"), "not_an_envelope"),
    "no delivery tag": (without("delivery_tag", where="properties"), "not_an_envelope"),
    "no delivery info": (without("delivery_info", where="properties"), "not_an_envelope"),
    "a delivery tag that is a list": (envelope(properties={"delivery_tag": [1]}), "not_an_envelope"),
    "a body that is an object": (envelope(parts={"body": {"a": 1}}), "not_an_envelope"),
    "a body in no base64": (envelope(parts={"body": "abc"}), "not_an_envelope"),
    "a body in an encoding nobody knows": (
        envelope(properties={"body_encoding": "rot13"}),
        "not_an_envelope",
    ),
    "ten megabytes": (envelope(b"x" * 10_000_000), "too_large"),
    "a large body": (envelope(body("x" * 20_000)), "too_large"),
    "headers that are a list": (envelope(parts={"headers": [1]}), "bad_headers"),
    "headers that are a text": (envelope(parts={"headers": "task"}), "bad_headers"),
    "a compressed body": (envelope(zlib.compress(body("1")), compression="gzip"), "compressed"),
    "a compression nobody knows": (envelope(compression=["x"]), "compressed"),
    "a bomb": (envelope(compression="application/x-gzip", parts={"body": BOMB}), "too_large"),
    "a small bomb": (
        envelope(zlib.compress(bytes(10_000_000), 9), compression="application/x-gzip"),
        "compressed",
    ),
    "a pickle": (
        envelope(pickle.dumps([[1], {}, {}]), parts={"content-type": "application/x-python-serialize"}),
        "wrong_content_type",
    ),
    "YAML": (envelope(b"a: 1", parts={"content-type": "application/x-yaml"}), "wrong_content_type"),
    "no content type": (without("content-type"), "wrong_content_type"),
    "a content type that is a list": (envelope(parts={"content-type": ["json"]}), "wrong_content_type"),
    "binary": (envelope(parts={"content-encoding": "binary"}), "wrong_content_type"),
    "an encoding nobody knows": (envelope(parts={"content-encoding": "klingon"}), "wrong_content_type"),
    "an encoding that is a number": (envelope(parts={"content-encoding": 8}), "wrong_content_type"),
    "protocol 1": (protocol_1(), "no_task"),
    "no headers": (envelope(parts={"headers": None}), "no_task"),
    "no task": (without("task", where="headers"), "no_task"),
    "a task that is a list": (envelope(task=[QUEUE]), "no_task"),
    "a task that is an object": (envelope(task={}), "no_task"),
    "an endless task": (envelope(task="x" * 1_000), "no_task"),
    "no id": (without("id", where="headers"), "no_id"),
    "an id that is null": (envelope(id=None), "no_id"),
    "an id that is an object": (envelope(id={"a": 1}), "no_id"),
    "a parent that is a list": (envelope(parent_id=[1]), "bad_headers"),
    "a language that is a number": (envelope(lang=3), "bad_headers"),
    "a long text for Flower": (envelope(argsrepr="x" * 1_000), "bad_headers"),
    "no body": (without("body"), "wrong_arguments"),
    "an empty body": (envelope(b""), "wrong_arguments"),
    "a body that is no JSON": (envelope(b"hello"), "not_json"),
    "a body that is no text": (envelope(b"\xff\xfe"), "not_json"),
    "a deep body": (envelope(DEEP[:3_000] + DEEP[-3_000:]), "not_json"),
    "a body that is a number": (envelope(b"7"), "wrong_arguments"),
    "a body that is an object with args": (envelope(b'{"args": [], "kwargs": {}}'), "wrong_arguments"),
    "a body that is null": (envelope(b"null"), "wrong_arguments"),
    "a body with a typed value": (envelope(json.dumps([[TYPED_JUNK], {}, EMBED]).encode()), "not_json"),
    "no arguments": (envelope(body()), "wrong_arguments"),
    "an argument too many": (envelope(body(str(uuid.uuid4()), "more")), "wrong_arguments"),
    "an argument that is no id": (envelope(body("1; DROP TABLE")), "wrong_arguments"),
    "an argument that is an object": (envelope(body({"a": 1})), "wrong_arguments"),
    "a named argument": (envelope(body(str(uuid.uuid4()), named={"force": True})), "wrong_arguments"),
    "named arguments in a list": (envelope(b'[["1"], ["a"], {}]'), "wrong_arguments"),
    "a callback": (
        envelope(body(str(uuid.uuid4()), callbacks=[{"task": "celery.backend_cleanup"}])),
        "wrong_arguments",
    ),
    "a chain": (envelope(body(str(uuid.uuid4()), chain=[{"task": QUEUE}])), "wrong_arguments"),
    "a task that nobody knows": (envelope(task="no.such"), "unknown_task"),
    "a task of Celery's own": (envelope(task="celery.map"), "unknown_task"),
}
