"""The jobs of this app: to buy, to send the receipt, and to look when the gateway has told of something."""

import time
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.utils import timezone
from rest_framework import serializers

from operations.jobs import Backoff, OwnerID, Payload, Rejected, job
from payments import events, gateway, orders, receipt
from payments.line import DEPENDENCY
from payments.models import CURRENCY, ORDER_NUMBER, PaymentStatus

KEYS_LAST = timedelta(hours=23)  # the gateway forgets keys after a day
CAPTURE_MARGIN = timedelta(hours=1)  # before an authorisation lapses; later nobody knows which was first


class Purchase(Payload):
    """What to buy, for how much, and with which of the gateway's payment methods."""

    order_id = serializers.RegexField(ORDER_NUMBER, help_text="Your own name for the order: it is paid once.")
    sku = serializers.RegexField(ORDER_NUMBER)  # a name of the same letters
    quantity = serializers.IntegerField(min_value=1, max_value=10_000)
    amount_minor = serializers.IntegerField(
        min_value=1, max_value=99_999_999, help_text="In the currency's minor unit."
    )
    currency = serializers.RegexField(CURRENCY)
    payment_method = serializers.RegexField(
        r"^pm_[A-Za-z0-9_]{1,100}$", help_text="The gateway's token; never a card's number."
    )
    user_id = OwnerID()


def buy(
    run: Any,
    *,
    user_id: int,
    order_id: str,
    sku: str,
    quantity: int,
    amount_minor: int,
    currency: str,
    payment_method: str,
) -> dict[str, Any]:
    """Reserve, make an intent, hold the amount, take it; each a recovery point."""
    operation_id = UUID(run.operation_id)
    wish = orders.Wish(user_id, order_id, sku, quantity, amount_minor, currency)
    run.step("reserved", orders.reserve, wish=wish, operation_id=operation_id)
    money = {"amount_minor": amount_minor, "currency": currency}
    intent = run.effect(
        "intent",
        gateway.create_intent,
        request={
            **money,
            "operation_id": run.operation_id,
            "order": order_id,
            "payment_method": payment_method,
            "asked_at": int(time.time()),
        },
        look_up=gateway.find_intent,
        resend=True,  # an intent moves no money, and to find it is to read a list
        **_terms(amount_minor),
    )
    run.step("intent_noted", orders.note_intent, operation_id=operation_id, gateway_id=intent["id"])
    about = {**money, "intent": intent["id"]}
    held = run.effect(
        "authorise", gateway.confirm, request=about, look_up=gateway.get_confirmed, **_terms(amount_minor)
    )
    until = held["capture_before"]
    run.step("hold_noted", orders.note_hold, operation_id=operation_id, capture_before=until)
    if until is not None and datetime.fromisoformat(until) - CAPTURE_MARGIN < timezone.now():
        raise Rejected("authorisation_lapsed", "The bank no longer holds the amount.")
    taken: dict[str, Any] = run.effect(
        "capture", gateway.capture, request=about, look_up=gateway.get_captured, **_terms(amount_minor)
    )
    return taken


def release(run: Any, **payload: Any) -> None:
    """Let go of what the gateway holds, and put the goods back."""
    intent = run.outcome("intent", look_up=gateway.find_intent)
    if intent is not None:
        about = {name: intent[name] for name in ("amount_minor", "currency")} | {"intent": intent["id"]}
        run.outcome("authorise", look_up=gateway.get_confirmed)  # known before it is let go
        run.effect(
            "cancel",
            gateway.cancel,
            request=about,
            look_up=gateway.get_cancelled,
            **_terms(intent["amount_minor"]),
        )
    ends_as = PaymentStatus.CANCELLED if run.is_cancelled else PaymentStatus.FAILED
    run.step("released", orders.release, operation_id=UUID(run.operation_id), status=str(ends_as))


@job(
    "payments.purchase",
    route="purchases",
    payload=Purchase,
    # Two customers may both have an order "1".
    resource="payments:order:{user_id}:{order_id}",
    dependency=DEPENDENCY,
    call=buy,
    compensate=release,
    no_return="capture",
    redact=("payment_method",),
    retry=Backoff(5, 15, 45, 120, 300),
    soft_limit=90,
    hard_limit=100,
    deadline=timedelta(hours=1),
    key_ttl=timedelta(days=30),
)
def purchase(
    run: Any, answer: dict[str, Any], *, user_id: int, order_id: str, sku: str, quantity: int, **payload: Any
) -> dict[str, Any]:
    """Buy something: pay an order, once."""
    order = orders.sell(UUID(run.operation_id))
    run.follow_up("inventory.grant", {"order_id": order_id, "sku": sku, "quantity": quantity})
    run.follow_up("payments.receipt", {"order_id": order_id})
    return {"order_id": order_id, "payment": answer["id"], "paid_minor": order.amount_minor}


class Receipt(Payload):
    """Of which order."""

    order_id = serializers.RegexField(ORDER_NUMBER)
    user_id = OwnerID()


def mail(run: Any, *, user_id: int, order_id: str) -> bool:
    """Send it to who has an address. What may have been sent is not sent again: a mail can't be looked up."""
    letter = receipt.written(user_id, order_id, operation_id=run.operation_id)
    if letter is None:
        return False
    run.effect("mail", receipt.send, request=letter, without_look_up="park", timeout=receipt.TIMEOUT_SECONDS)
    return True


@job(
    "payments.receipt",
    payload=Receipt,
    dependency=receipt.DEPENDENCY,
    call=mail,
    retry=Backoff(30, 120, 600, 3_600),
    deadline=timedelta(days=1),
)
def receipted(run: Any, sent: bool, **payload: Any) -> dict[str, Any]:
    """Tell a customer by e-mail that an order is paid."""
    return {"sent": sent}


class Told(Payload):
    """Of which payment intent the gateway has told, in which event of ours."""

    event = serializers.IntegerField()
    intent = serializers.RegexField(r"^pi_\w{1,100}$")


@job(
    "payments.event",
    payload=Told,
    resource="payments:intent:{intent}",
    dependency=DEPENDENCY,
    call=events.read,
    retry=Backoff(5, 15, 45, 120, 600),
    deadline=timedelta(days=3),
)
def looked(run: Any, truth: dict[str, Any], *, event: int, intent: str) -> dict[str, Any]:
    """Look at a payment that the gateway has told us of, and make our rows agree."""
    return {"outcome": events.apply(UUID(run.operation_id), truth, event=event)}


def _terms(amount_minor: int) -> dict[str, Any]:
    """Say for how long the gateway knows a key, when its client gives up, and what is at stake."""
    timeout = settings.STRIPE_CONNECT_SECONDS + settings.STRIPE_TIMEOUT_SECONDS
    return {"window": KEYS_LAST, "timeout": timeout, "amount_minor": amount_minor}
