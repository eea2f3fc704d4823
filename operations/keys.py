"""A client's key: how it is read, what it stands for, and how long it lives."""

import hashlib
import json
import re
from decimal import Decimal
from typing import Any

BARE_KEY = re.compile(r"[A-Za-z0-9._:~-]{1,255}")
QUOTED_KEY = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\]){1,255})"')  # visible ASCII; " and \ after a \
PATTERN = f"^({BARE_KEY.pattern}|{QUOTED_KEY.pattern})$"  # for clients, in JavaScript's dialect as well

# Note [How long a key lives]
# As long as its operation can still act, and then for the job's key_ttl: until then a repeat finds the
# operation. A dead letter may still act, for a person may replay it. This predicate is judged at look-up, at
# take-over and by the purge, by the database's clock: a key that is over is over, whether a row is left of it
# or not. `k` is the key's record, `o` its operation.
LIVES = """(o.status NOT IN ('succeeded', 'ignored') OR o.finished_at > clock_timestamp() - {ttl})"""
LIVES_BY_CONTRACT = LIVES.format(ttl="%(key_ttl)s::interval")


class KeyMissing(ValueError):
    """The request carries no Idempotency-Key."""


class KeyInvalid(ValueError):
    """The Idempotency-Key is not one string of 1 to 255 visible ASCII characters, bare or quoted."""


def parse_key(header: str | None) -> str:
    """Read an Idempotency-Key: a structured-field string ("abc") or the same bare (abc).

    Source: draft-ietf-httpapi-idempotency-key-header-07 (expired), RFC 9651 section 3.3.3.

    Raises:
        KeyMissing: there is no header.
        KeyInvalid: it is empty, too long, a list, or holds other characters.
    """
    if header is None:
        raise KeyMissing("send an Idempotency-Key header: the same one whenever you repeat this request")
    header = header.strip()
    if BARE_KEY.fullmatch(header):
        return header
    quoted = QUOTED_KEY.fullmatch(header)
    if quoted is None:
        raise KeyInvalid('an Idempotency-Key is 1 to 255 visible ASCII characters, bare or in "quotes"')
    return re.sub(r"\\(.)", r"\1", quoted[1])


def fingerprint(*, method: str, path: str, job_type: str, media_type: str, body: Any) -> str:
    """Digest what makes two requests the same: "v1:" and SHA-256 over a canonical form (after RFC 8785).

    Numbers count as written, so 1.0 and 1.00 differ; the order of members does not count.
    """
    canonical = json.dumps(_exact(body), sort_keys=True, separators=(",", ":"))
    parts = "\n".join((method, path, job_type, media_type, canonical))
    return "v1:" + hashlib.sha256(parts.encode()).hexdigest()


def key_hash(key: str) -> str:
    """Name a key in logs without showing it: 12 hexadecimal digits."""
    return hashlib.sha256(key.encode()).hexdigest()[:12]


def _exact(value: Any) -> Any:
    """Give numbers with a fraction the text they were written as, so that no two of them meet in a float."""
    if isinstance(value, Decimal):
        return {"\0": str(value)}  # no body can hold this member: NUL is refused
    if isinstance(value, dict):
        return {member: _exact(inner) for member, inner in value.items()}
    if isinstance(value, list):
        return [_exact(inner) for inner in value]
    return value
