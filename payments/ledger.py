"""Write down where money went, once for each operation, and never change a row."""

from uuid import UUID

from django.db import connection

from payments.models import EntryKind, Order

GATEWAY, SALES = "gateway", "sales"
SIDES = {EntryKind.CAPTURE: (GATEWAY, SALES), EntryKind.REFUND: (SALES, GATEWAY)}  # debit, credit

POST = """
    INSERT INTO payments_ledgerentry (operation_id, kind, order_id, debit, credit, amount_minor, currency)
    VALUES (%s, %s, %s, %s, %s, %s, %s)"""
BALANCE = """
    SELECT currency, COALESCE(sum(amount_minor) FILTER (WHERE debit = 'gateway'), 0)
        - COALESCE(sum(amount_minor) FILTER (WHERE credit = 'gateway'), 0)
    FROM payments_ledgerentry GROUP BY currency"""
REFUNDED = """
    SELECT COALESCE(sum(amount_minor), 0) FROM payments_ledgerentry WHERE order_id = %s AND kind = 'refund'"""


def post(kind: EntryKind, order: Order, *, operation_id: UUID, amount_minor: int) -> None:
    """Post an entry; must be in the transaction that makes it true.

    Raises:
        django.db.IntegrityError: this operation has posted one of this kind already.
    """
    debit, credit = SIDES[kind]
    with connection.cursor() as cursor:
        cursor.execute(POST, [operation_id, str(kind), order.pk, debit, credit, amount_minor, order.currency])


def balance() -> dict[str, int]:
    """Give what the gateway owes us by our books, in minor units by currency."""
    with connection.cursor() as cursor:
        cursor.execute(BALANCE)
        return {currency: int(amount) for currency, amount in cursor.fetchall()}


def refunded_minor(order: Order) -> int:
    with connection.cursor() as cursor:
        cursor.execute(REFUNDED, [order.pk])
        return int(cursor.fetchone()[0])
