"""What an error answer of the gateway means: by status and code, never by the SDK's class.

The first row that matches decides: https://docs.stripe.com/error-low-level, /rate-limits, /declines/codes.
"""

from collections.abc import Mapping
from typing import Any

import stripe

from operations.jobs import Rejected
from payments.line import DEPENDENCY
from tasks.retry import CallFailed, retry_after_seconds

SOFT = ("processing_error", "issuer_not_available", "reenter_transaction", "approve_with_id")
HIDDEN = ("lost_card", "stolen_card", "fraudulent", "pickup_card", "merchant_blacklist")  # told to nobody
STATES = (
    "payment_intent_unexpected_state",
    "charge_already_captured",
    "charge_already_refunded",
    "charge_expired_for_capture",
)
TEXT_LENGTH = 200  # characters of the gateway's own words that are kept


def tells_state(error: stripe.StripeError) -> bool:
    """Say whether an error means that the thing is not as we thought: reading it tells if as we wanted."""
    return error.http_status in (400, 402, 404) and (
        _code(error) in STATES or _decline(error) == "duplicate_transaction"
    )


def failure(error: stripe.StripeError) -> Exception:
    """Give the exception to raise: Rejected for the bank's no, else CallFailed with its certainty."""
    read = READ.get(error.http_status or 0)
    if read is not None:
        return read(error)
    category = UNKNOWN.get(error.http_status or 0, "outcome_unknown")
    return _failed(error, category, "maybe_sent")


def _limited(error: stripe.StripeError) -> CallFailed:
    """A limiter stands before the keys: nothing was done."""
    category = "conflict" if _code(error) == "lock_timeout" else "rate_limited"
    if _should_retry(error) is False:
        return _failed(error, "invalid_input", "not_sent")
    return _failed(error, category, "not_sent")


def _refused(error: stripe.StripeError) -> CallFailed:
    if (
        _type(error) == "idempotency_error"
    ):  # our parameters have changed under a key: the first answer stands
        return _failed(error, "bug", "refused")
    if _should_retry(error):
        return _failed(error, "conflict", "not_sent")
    return _failed(error, "invalid_input", "refused")


def _declined(error: stripe.StripeError) -> Exception:
    decline = _decline(error)
    if decline == "authentication_required":
        return Rejected("requires_action", "The bank wants the customer to confirm the payment.")
    if decline in SOFT and _should_retry(error) is not False:
        return _failed(error, "conflict", "refused")
    code = "card_declined" if decline in HIDDEN else decline
    return Rejected(code, f"The bank has declined the card ({code.replace('_', ' ')}).")


def _shut(error: stripe.StripeError) -> CallFailed:
    return _failed(error, "dependency_unavailable", "not_sent", shuts=True)


# 409: the key is in use, so the first request is still under way.
UNKNOWN = {409: "conflict", 424: "dependency_unavailable", 503: "dependency_unavailable"}
READ = {
    400: _refused,
    401: _shut,
    402: _declined,
    403: _shut,
    404: _refused,
    429: _limited,
}


def _failed(error: stripe.StripeError, category: str, certainty: str, *, shuts: bool = False) -> CallFailed:
    said = f"HTTP {error.http_status} {_type(error)} {_code(error)}".rstrip()
    after = retry_after_seconds(_headers(error).get("retry-after"))
    return CallFailed(
        category, said[:TEXT_LENGTH], DEPENDENCY, retry_after_seconds=after, shuts=shuts, certainty=certainty
    )


def _decline(error: stripe.StripeError) -> str:
    return str(_member(error, "decline_code") or _code(error) or "card_declined")[:50]


def _code(error: stripe.StripeError) -> str:
    """Read the code from the body: the SDK does not give every kind of error its own."""
    return str(_member(error, "code") or "")[:50]


def _type(error: stripe.StripeError) -> str:
    return str(_member(error, "type") or "error")[:50]


def _member(error: stripe.StripeError, name: str) -> Any:
    body: Any = error.json_body
    told = body.get("error") if isinstance(body, Mapping) else None
    return told.get(name) if isinstance(told, Mapping) else None


def _should_retry(error: stripe.StripeError) -> bool | None:
    """Read what Stripe says of another try with the same key; None: it says nothing."""
    return {"true": True, "false": False}.get(_headers(error).get("stripe-should-retry", ""))


def _headers(error: stripe.StripeError) -> dict[str, str]:
    return {str(name).lower(): str(value) for name, value in (error.headers or {}).items()}
