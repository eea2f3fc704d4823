"""What a purchase does to our own rows: reserve, note what the gateway holds, sell, or release.

Each is done inside a step of the operation or its finishing transaction; nothing here talks to anybody.
"""

from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection
from django.db.models import F
from django.db.models.functions import Now

from operations.jobs import Duplicate, NotYet, Rejected
from payments import ledger
from payments.models import (
    LIVE,
    EntryKind,
    Order,
    OrderStatus,
    Payment,
    PaymentKind,
    PaymentStatus,
    Product,
    Reservation,
)

LOOK_AGAIN_SECONDS = 5.0  # at another purchase of the same order that is not decided


class Wish(NamedTuple):
    """What a customer wants to buy."""

    owner_id: int
    number: str
    sku: str
    quantity: int
    amount_minor: int
    currency: str


ORDER = """
    INSERT INTO payments_order (owner_id, number, product_id, quantity, amount_minor, currency, status)
    VALUES (%s, %s, %s, %s, %s, %s, 'pending') ON CONFLICT (owner_id, number) DO NOTHING"""
# What was released may be reserved anew; what is reserved is another operation's.
RESERVE = """
    INSERT INTO payments_reservation AS r (order_id, product_id, quantity, operation_id)
    VALUES (%s, %s, %s, %s)
    ON CONFLICT (order_id) DO UPDATE
        SET product_id = excluded.product_id, quantity = excluded.quantity,
            operation_id = excluded.operation_id, released_at = NULL
        WHERE r.released_at IS NOT NULL
    RETURNING id"""
CHARGE = """
    INSERT INTO payments_payment (order_id, kind, amount_minor, status, operation_id, gateway_id)
    VALUES (%s, 'charge', %s, 'pending', %s, '')
    ON CONFLICT (order_id) WHERE kind = 'charge' AND status IN ('pending', 'authorized', 'captured')
        DO NOTHING
    RETURNING id"""


def reserve(wish: Wish, *, operation_id: UUID) -> dict[str, Any]:
    """Set the goods aside and begin the order's one live charge; give {order}. Must be in a transaction.

    Raises:
        Rejected: it can't be bought so.
        Duplicate: another operation has paid the order.
        NotYet: another operation is at it, and undecided.
    """
    product = _product(wish)
    _insert(ORDER, wish.owner_id, wish.number, product.pk, *wish[3:])
    order = Order.objects.select_for_update(no_key=True).get(owner_id=wish.owner_id, number=wish.number)
    _refuse_another(order, product, wish)
    _give_way(order, operation_id)
    taken = Product.objects.filter(pk=product.pk, stock__gte=wish.quantity)
    if not taken.update(stock=F("stock") - wish.quantity):
        raise Rejected("sold_out", f"There are not {wish.quantity} of {wish.sku} left.")
    reserved = _insert(RESERVE, order.pk, product.pk, wish.quantity, operation_id)
    charged = _insert(CHARGE, order.pk, wish.amount_minor, operation_id)
    if not reserved or not charged:
        raise NotYet(seconds=LOOK_AGAIN_SECONDS, message=f"another purchase of order {order.number}")
    return {"order": order.pk}


def note_intent(operation_id: UUID, gateway_id: str) -> None:
    """Keep what the gateway calls the charge."""
    _live(operation_id).update(gateway_id=gateway_id)


def note_hold(operation_id: UUID, capture_before: str | None) -> None:
    """Keep that the amount is held, and until when."""
    until = None if capture_before is None else datetime.fromisoformat(capture_before)
    _live(operation_id).update(status=PaymentStatus.AUTHORIZED, capture_before=until)


def sell(operation_id: UUID) -> Order:
    """Take the charge for captured, the order for paid, and post it; must be in the finishing transaction."""
    payment = Payment.objects.select_related("order").get(operation_id=operation_id, status__in=LIVE)
    _live(operation_id).update(status=PaymentStatus.CAPTURED, finished_at=Now())
    Order.objects.filter(pk=payment.order_id).update(status=OrderStatus.PAID, paid_at=Now())
    ledger.post(
        EntryKind.CAPTURE, payment.order, operation_id=operation_id, amount_minor=payment.amount_minor
    )
    return payment.order


def release(operation_id: UUID, *, status: str) -> None:
    """Put the goods back and end the charge as failed or cancelled; nothing is held any more."""
    reservation = Reservation.objects.filter(operation_id=operation_id, released_at=None).first()
    if reservation is not None:
        Product.objects.filter(pk=reservation.product_id).update(stock=F("stock") + reservation.quantity)
        Reservation.objects.filter(pk=reservation.pk).update(released_at=Now())
    _live(operation_id).update(status=status, finished_at=Now())


def _product(wish: Wish) -> Product:
    product = Product.objects.filter(sku=wish.sku).first()
    if product is None:
        raise Rejected("unknown_product", f"Nothing is called {wish.sku}.")
    if (product.price_minor * wish.quantity, product.currency) != (wish.amount_minor, wish.currency):
        price = f"{product.price_minor * wish.quantity} {product.currency}"
        raise Rejected("price_differs", f"{wish.quantity} of {wish.sku} cost {price}, in minor units.")
    return product


def _refuse_another(order: Order, product: Product, wish: Wish) -> None:
    theirs = (order.product_id, order.quantity, order.amount_minor, order.currency)
    if theirs != (product.pk, *wish[3:]):
        raise Rejected("order_differs", f"Order {wish.number} is for something else.")


def _give_way(order: Order, operation_id: UUID) -> None:
    """Let another purchase of this order be, if it has succeeded or still may."""
    live = order.payments.filter(kind=PaymentKind.CHARGE, status__in=LIVE).exclude(operation_id=operation_id)
    other = live.first()
    if order.status in (OrderStatus.PAID, OrderStatus.REFUNDED):
        paid = order.payments.filter(kind=PaymentKind.CHARGE, status=PaymentStatus.CAPTURED).first()
        raise Duplicate(
            of=str(paid.operation_id if paid else ""), message=f"order {order.number} is {order.status}"
        )
    if other is not None:
        raise NotYet(seconds=LOOK_AGAIN_SECONDS, message=f"operation {other.operation_id} buys this order")


def _live(operation_id: UUID) -> Any:
    return Payment.objects.filter(operation_id=operation_id, kind=PaymentKind.CHARGE, status__in=LIVE)


def _insert(statement: str, *values: int | str | UUID) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return cursor.rowcount == 1
