"""Members of a payload that are nobody's business: sealed at rest, masked where shown, kept out of texts.

A job names them (`redact`). With PAYLOAD_KEYS they are stored encrypted, and without as they are; shown they
are to nobody but who may reveal them. Whatever looks like a card number or a live key is not taken at all.
"""

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings
from rest_framework.serializers import ValidationError

from operations.dead_letters import Failure
from operations.jobs import Job

MASK = "•••"
SEALED = "sealed"  # the only member of what stands in the place of a sealed value
SHORTEST_SECRET = 4  # characters: a shorter text is found everywhere, and masking it would hide all else

# By issuer: one in ten numbers of the right length has a check digit that holds, and times and telephones
# are numbers, too. Sources: ISO/IEC 7812-1 (Luhn's check digit), the ranges that issuers publish; Stripe
# docs, "API keys".
CARD = re.compile(
    r"(?<![\w.+-])(?:"
    r"4\d{3}(?:[ -]?\d{4}){3}|"
    r"(?:5[1-5]\d{2}|222[1-9]|22[3-9]\d|2[3-6]\d{2}|27[01]\d|2720|6011|65\d{2}|35\d{2}|62\d{2})"
    r"(?:[ -]?\d{4}){3}|"
    r"3[47]\d{2}[ -]?\d{6}[ -]?\d{5}|"
    r"3(?:0[0-5]|[68]\d)\d[ -]?\d{6}[ -]?\d{4}"
    r")(?![\w-])"
)
LIVE_KEY = re.compile(r"\b(?:sk|rk)_live_\w+|\bwhsec_\w{16,}")


class Unreadable(Exception):
    """A sealed value opens with none of PAYLOAD_KEYS."""


def sealed(job: Job, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Give what is stored of a payload: what the job redacts is encrypted, if there is a key for it."""
    if not job.redact or not settings.PAYLOAD_KEYS:
        return dict(payload)
    return {name: _seal(value) if name in job.redact else value for name, value in payload.items()}


def opened(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Give a stored payload as it was sent.

    Raises:
        Unreadable: the key that sealed a value is not among PAYLOAD_KEYS.
    """
    return {name: _open(value) if _is_sealed(value) else value for name, value in payload.items()}


def resealed(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Give a stored payload with what is sealed sealed anew, by the first of PAYLOAD_KEYS."""
    return {name: _seal(_open(value)) if _is_sealed(value) else value for name, value in payload.items()}


def scrubbed(failure: Failure, job: Job, payload: Mapping[str, Any]) -> Failure:
    """Take what the job redacts out of the texts of an error, which may tell it; then cut them."""
    message, traceback = failure.message, failure.traceback
    for secret in _spellings(_texts([payload.get(name) for name in job.redact])):
        message, traceback = message.replace(secret, MASK), traceback.replace(secret, MASK)
    return replace(failure, message=message, traceback=traceback).shortened()


def without_values(job: Job, wrong: Any) -> Any:
    """Give what is wrong with a payload, but of what the job redacts only that it is: DRF tells the value."""
    if not isinstance(wrong, Mapping):
        return wrong
    return {name: "is not valid" if name in job.redact else why for name, why in wrong.items()}


def refuse_what_must_not_be_kept(body: Mapping[str, Any]) -> None:
    """Say nothing if no member holds a card number or a live key.

    Raises:
        rest_framework.serializers.ValidationError: which one does, and never what.
    """
    for name, value in body.items():
        if _is_sealed(value):
            raise ValidationError({name: "This would be taken for something that is sealed."})
        for text in _texts(value):
            if LIVE_KEY.search(text):
                raise ValidationError({name: "This looks like a live key of a payment provider."})
            if any(_is_card(found[0]) for found in CARD.finditer(text)):
                raise ValidationError({name: "This looks like a card number; send the provider's token."})


def forget_keys() -> None:
    """Read PAYLOAD_KEYS anew, as after settings have changed."""
    _keys.cache_clear()


@functools.cache
def _keys() -> MultiFernet:
    return MultiFernet([Fernet(key) for key in settings.PAYLOAD_KEYS])


def _seal(value: Any) -> dict[str, str]:
    return {SEALED: _keys().encrypt(json.dumps(value).encode()).decode()}


def _open(value: Mapping[str, str]) -> Any:
    try:
        return json.loads(_keys().decrypt(value[SEALED].encode()))
    except (InvalidToken, ValueError) as wrong:  # ValueError: there are no keys at all
        raise Unreadable("a sealed value opens with none of PAYLOAD_KEYS") from wrong


def _is_sealed(value: Any) -> bool:
    return isinstance(value, Mapping) and set(value) == {SEALED} and isinstance(value[SEALED], str)


def _spellings(secrets: Iterable[str]) -> list[str]:
    """Give each as it is, and as Python and JSON quote it; the longest first, for one may hold another."""
    spelled = {form for each in secrets for form in (each, repr(each)[1:-1], json.dumps(each)[1:-1])}
    return sorted(spelled, key=len, reverse=True)


def _texts(value: Any) -> Iterator[str]:
    """Give every text and every number in a tree, as text."""
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
    elif value is not None and not isinstance(value, bool) and len(str(value)) >= SHORTEST_SECRET:
        yield str(value)


def _is_card(text: str) -> bool:
    """Say whether Luhn's check digit holds."""
    digits = [int(each) for each in reversed(text) if each.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[1::2]]
    return 13 <= len(digits) <= 19 and (sum(digits[::2]) + sum(doubled)) % 10 == 0
