"""What the gateway tells of by itself: kept once, and a reason to look. What we find then decides.

So events may come late, twice, never and in any order, and all orders end in the same state.
"""

import json
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.db.models.functions import Now

from operations import accept, effects, jobs
from payments import drifts, gateway, ledger
from payments.models import (
    EntryKind,
    GatewayEvent,
    Order,
    OrderStatus,
    Payment,
    PaymentKind,
    PaymentStatus,
)

OWNER = "payments-gateway"  # of the operations that look
DECIDED = ("succeeded", "canceled")
ABOUT_AN_INTENT = (
    "payment_intent.created",
    "payment_intent.amount_capturable_updated",
    "payment_intent.payment_failed",
    "payment_intent.requires_action",
    "payment_intent.succeeded",
    "payment_intent.canceled",
    "charge.captured",
    "charge.refunded",
    "charge.dispute.created",
)


class Unreadable(Exception):
    """The body is not an event."""


class Told(NamedTuple):
    """What we keep of an event: nothing of the card, nor of the customer."""

    event_id: str
    type: str
    object_id: str
    told_at: datetime


def read_body(body: bytes) -> Told:
    """Read what an event tells.

    Raises:
        Unreadable: it is none.
    """
    try:
        event = json.loads(body)
        thing = event["data"]["object"]
        intent = thing["id"] if thing.get("object") == "payment_intent" else thing.get("payment_intent")
        told_at = datetime.fromtimestamp(int(event["created"]), UTC)
        told = Told(str(event["id"]), str(event["type"])[:100], str(intent or ""), told_at)
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise Unreadable(f"the body is no event: {type(error).__name__}") from error
    if not 0 < len(told.event_id) <= 255 or len(told.object_id) > 255 or "\0" in f"{told[:3]}":
        raise Unreadable("the event's names are too long, or none")
    return told


KEEP = """
    INSERT INTO payments_gatewayevent (event_id, type, object_id, told_at, outcome)
    VALUES (%s, %s, %s, %s, '') ON CONFLICT (event_id) DO NOTHING RETURNING id"""


def keep(told: Told) -> bool:
    """Store an event, with the operation that looks; False: it is there already. Opens a transaction."""
    owner = _owner()
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(KEEP, told)
            row = cursor.fetchone()
        if row is None:
            return False
        event = GatewayEvent.objects.filter(pk=row[0])
        if told.type not in ABOUT_AN_INTENT or not told.object_id.startswith("pi_"):
            event.update(outcome="ignored: a kind that means nothing to us", applied_at=Now())
        else:
            event.update(operation_id=_look(told, event=row[0], owner_id=owner))
    return True


def read(run: Any, *, event: int, intent: str) -> dict[str, Any]:
    """Ask how an intent stands; give what gateway.get_intent does, with {refunded_minor}."""
    return {**gateway.get_intent(intent), "refunded_minor": gateway.refunded_minor(intent)}


def apply(operation_id: UUID, truth: dict[str, Any], *, event: int) -> str:
    """Make our rows agree with what was found, and say what that took; must be in a transaction."""
    outcome = _apply(operation_id, truth)
    GatewayEvent.objects.filter(pk=event).update(outcome=outcome[:100], applied_at=Now())
    return outcome


def _apply(operation_id: UUID, truth: dict[str, Any]) -> str:
    payment = _payment_of(truth)
    if payment is None:
        return _look_at_operation(truth)
    if payment.status in (PaymentStatus.PENDING, PaymentStatus.AUTHORIZED):
        looks = effects.look_again(payment.operation_id, decided=truth["status"] in DECIDED)
        return "its operation looks again" if looks else "its operation is at it"
    kind = drifts.between(payment, truth)
    if payment.status == PaymentStatus.CAPTURED and truth["refunded_minor"]:
        return _give_back(operation_id, payment, truth["refunded_minor"])
    if kind is None:
        return "agrees"
    drifts.open_one(kind, payment=payment, truth=truth)
    return f"differs: {kind}"


def _give_back(operation_id: UUID, payment: Payment, refunded_minor: int) -> str:
    """Post what went back and was not posted; the order is refunded when all of it has."""
    order = payment.order
    missing = refunded_minor - ledger.refunded_minor(order)
    if missing <= 0:
        return "agrees"
    ledger.post(EntryKind.REFUND, order, operation_id=operation_id, amount_minor=missing)
    Payment.objects.create(
        order=order,
        kind=PaymentKind.REFUND,
        amount_minor=missing,
        status=PaymentStatus.REFUNDED,
        operation_id=operation_id,
        finished_at=Now(),
    )
    if refunded_minor >= payment.amount_minor:
        Order.objects.filter(pk=order.pk).update(status=OrderStatus.REFUNDED)
    return f"{missing} went back"


def _payment_of(truth: dict[str, Any]) -> Payment | None:
    """Find and lock the charge that an intent is of."""
    charges = Payment.objects.filter(gateway_id=truth["id"], kind=PaymentKind.CHARGE)
    return charges.select_related("order").select_for_update(of=("self",), no_key=True).first()


def _look_at_operation(truth: dict[str, Any]) -> str:
    """Wake the operation that the intent's metadata names: it may not have heard of its intent yet."""
    try:
        named = UUID(truth["operation_id"])
    except ValueError:
        return "not ours"
    return "its operation looks again" if effects.look_again(named) else "its operation is at it, or gone"


def _look(told: Told, *, event: int, owner_id: int) -> UUID:
    """Accept the operation that looks."""
    job = jobs.get("payments.event")
    payload = {"event": event, "intent": told.object_id}
    request = accept.Request(
        job=job,
        owner_id=owner_id,
        key=told.event_id,
        fingerprint=f"v1:event:{told.event_id}"[:80],
        payload=payload,
        values=job.payload.check(payload),
        source="gateway",
    )
    return accept.accept(request).operation.id


def _owner() -> int:
    """Give the user that owns what nobody asked for; nobody can log in as it."""
    owner, _ = get_user_model().objects.get_or_create(
        username=OWNER, defaults={"password": "!", "is_active": False}
    )
    return int(owner.pk)
