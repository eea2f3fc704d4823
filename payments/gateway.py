"""Ask the payment gateway: Stripe, by its SDK. What is sent, what is looked up, and what of it is believed.

Every `send` takes an idempotency key and a request that was frozen before; every look-up takes the same. Both
give {id, status, amount_minor, currency, capture_before}; a look-up gives None for what was surely not done.
"""

import functools
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import stripe
from django.conf import settings
from django.db import connection

from operations.jobs import Rejected
from payments import classification
from payments.line import DEPENDENCY, Line
from tasks.retry import CallFailed

AUTHORISED, CAPTURED, CANCELLED = ("requires_capture", "succeeded"), ("succeeded",), ("canceled",)
MADE = ("requires_confirmation", "requires_payment_method", *AUTHORISED)
PENDING = ("processing", "requires_action")
WITH_CHARGE = {"expand": ["latest_charge"]}
CLOCKS_DIFFER_SECONDS = 3_600  # between us and the gateway, at most
PAGE = 100

Answer = dict[str, Any]


def create_intent(key: str, request: Answer) -> Answer:
    """Make a payment intent, which moves no money.

    Takes {operation_id, order, amount_minor, currency, payment_method, asked_at}.
    """
    params: Any = {
        "amount": request["amount_minor"],
        "currency": request["currency"].lower(),
        "payment_method": request["payment_method"],
        "payment_method_types": ["card"],
        "capture_method": "manual",
        "metadata": {"operation_id": request["operation_id"], "order": request["order"], "key": key},
    }
    return _act(lambda: _intents().create(params, _under(key)), request, MADE)


def find_intent(key: str, request: Answer) -> Answer | None:
    """Look up an intent by the key in its metadata, among those made since it was asked for (`asked_at`)."""
    since = int(request["asked_at"]) - CLOCKS_DIFFER_SECONDS
    for intent in list_intents(since, since + 2 * 24 * CLOCKS_DIFFER_SECONDS):
        if metadata_of(intent).get("key") == key:
            return _believed(intent, request, (*MADE, *CANCELLED))
    return None


def confirm(key: str, request: Answer) -> Answer:
    """Hold the amount on the card. Takes {intent, amount_minor, currency}."""
    params: Any = WITH_CHARGE
    return _act(lambda: _intents().confirm(request["intent"], params, _under(key)), request, AUTHORISED)


def get_confirmed(key: str, request: Answer) -> Answer | None:
    return _state(request, done=AUTHORISED, never=CANCELLED)


def capture(key: str, request: Answer) -> Answer:
    """Take the amount that is held. Takes {intent, amount_minor, currency}."""
    params: Any = WITH_CHARGE
    return _act(lambda: _intents().capture(request["intent"], params, _under(key)), request, CAPTURED)


def get_captured(key: str, request: Answer) -> Answer | None:
    return _state(request, done=CAPTURED, never=CANCELLED)


def cancel(key: str, request: Answer) -> Answer:
    """Let go of what is held, or of an intent that holds nothing. Takes {intent, amount_minor, currency}."""
    return _act(lambda: _intents().cancel(request["intent"], None, _under(key)), request, CANCELLED)


def get_cancelled(key: str, request: Answer) -> Answer | None:
    return _state(request, done=CANCELLED, never=CAPTURED)


def get_intent(id: str) -> Answer:
    """Read an intent as it is, whatever we think of it; with {operation_id, order} of its metadata."""
    intent = _read(id)
    metadata = metadata_of(intent)
    named = {name: metadata.get(name, "") for name in ("operation_id", "order")}
    return {**_brief(intent), **named}


def metadata_of(intent: stripe.PaymentIntent) -> dict[str, str]:
    return dict(intent.to_dict().get("metadata") or {})


def refunded_minor(intent: str) -> int:
    """Add up what went back of an intent."""
    params: Any = {"payment_intent": intent, "limit": PAGE}
    refunds = _asked(lambda: _client().v1.refunds.list(params))
    return sum(int(refund.amount) for refund in refunds.data if refund.status in ("succeeded", "pending"))


def list_intents(created_from: int, created_to: int) -> Iterator[stripe.PaymentIntent]:
    """Give all intents that were made in these seconds (Unix time), the newest first."""
    params: Any = {"created": {"gte": created_from, "lte": created_to}, "limit": PAGE}
    pages = _asked(lambda: _intents().list(params))
    while True:
        yield from pages.data
        if not pages.has_more or not pages.data:
            return
        after: Any = {**params, "starting_after": pages.data[-1].id}
        pages = _asked(lambda after=after: _intents().list(after))  # type: ignore[misc]


def _act(do: Callable[[], stripe.PaymentIntent], request: Answer, wanted: tuple[str, ...]) -> Answer:
    """Send, and believe the answer if it is about what was asked.

    That it is not as we thought it was may mean that it is as we want it.
    """
    try:
        intent = _sent(do)
    except stripe.StripeError as error:
        if "intent" not in request or not classification.tells_state(error):
            raise classification.failure(error) from error
        intent = _read(request["intent"])
        if intent.status not in wanted:
            raise _not_as_wanted(error) from error
    return _believed(intent, request, wanted)


def _not_as_wanted(error: stripe.StripeError) -> Exception:
    if error.http_status == 402:
        return classification.failure(error)
    return CallFailed("invalid_input", "it is not as we thought", DEPENDENCY, certainty="refused")


def _state(request: Answer, *, done: tuple[str, ...], never: tuple[str, ...]) -> Answer | None:
    """Look up what has become of an intent; None: it may still come to it, and has not."""
    intent = _read(request["intent"])
    if intent.status in PENDING:
        raise CallFailed("conflict", f"it is still {intent.status}", DEPENDENCY)
    if intent.status in never:
        raise CallFailed("invalid_input", f"it is {intent.status}", DEPENDENCY, certainty="refused")
    return _believed(intent, request, done) if intent.status in done else None


def _believed(intent: stripe.PaymentIntent, request: Answer, wanted: tuple[str, ...]) -> Answer:
    """Give what is told of an intent, if it is the one we asked about and as we wanted it.

    Raises:
        Rejected: the bank wants something of the customer.
        CallFailed: it is not, so nothing is known.
    """
    told = _brief(intent)
    asked = {"amount_minor": request["amount_minor"], "currency": request["currency"].upper()}
    if "intent" in request:
        asked["id"] = request["intent"]
    if any(told[name] != value for name, value in asked.items()):
        raise CallFailed("outcome_unknown", "the answer is about something else", DEPENDENCY)
    if told["status"] == "requires_action":
        raise Rejected("requires_action", "The bank wants the customer to confirm the payment.")
    if told["status"] not in wanted:
        raise CallFailed("outcome_unknown", f"it is {told['status']}", DEPENDENCY)
    return told


def _brief(intent: stripe.PaymentIntent) -> Answer:
    try:
        charge = intent.latest_charge
        card: Any = {} if charge is None or isinstance(charge, str) else charge.to_dict()
        before = card.get("payment_method_details", {}).get("card", {}).get("capture_before")
        return {
            "id": str(intent.id),
            "status": str(intent.status),
            "amount_minor": int(intent.amount),
            "currency": str(intent.currency).upper(),
            "capture_before": before and datetime.fromtimestamp(int(before), UTC).isoformat(),
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CallFailed("outcome_unknown", "the answer is no payment intent", DEPENDENCY) from error


def _read(id: str) -> stripe.PaymentIntent:
    params: Any = WITH_CHARGE
    return _asked(lambda: _intents().retrieve(id, params))


def _asked(ask: Callable[[], Any]) -> Any:
    """Read something. Whatever goes wrong proves nothing of what was sent before.

    Raises:
        CallFailed: it could not be read.
    """
    try:
        return _sent(ask)
    except stripe.StripeError as error:
        failed = classification.failure(error)
        if isinstance(failed, CallFailed) and failed.certainty != "refused":
            raise failed from error
        raise CallFailed("outcome_unknown", f"HTTP {error.http_status} to a look-up", DEPENDENCY) from error


def _sent(do: Callable[[], Any]) -> Any:
    if connection.in_atomic_block:
        raise AssertionError("the gateway must not be asked inside a transaction")
    return do()


def _under(key: str) -> Any:
    return {"idempotency_key": key}


def _intents() -> Any:
    return _client().v1.payment_intents


def hang_up() -> None:
    """Close this process's connections; the next question opens others, with the settings of then."""
    _line().close()
    _line.cache_clear()
    _client.cache_clear()


@functools.cache
def _line() -> Line:
    return Line()


@functools.cache
def _client() -> stripe.StripeClient:
    """Keep one client a process: its connections are reused."""
    if not settings.STRIPE_API_KEY:
        raise CallFailed(
            "dependency_unavailable",
            "STRIPE_API_KEY is not set",
            DEPENDENCY,
            certainty="not_sent",
            shuts=True,
        )
    return stripe.StripeClient(
        settings.STRIPE_API_KEY,
        http_client=_line(),
        base_addresses={"api": settings.STRIPE_API_BASE},
        stripe_version=settings.STRIPE_VERSION,
        max_network_retries=0,  # ours are counted, and look up before they send again
    )
