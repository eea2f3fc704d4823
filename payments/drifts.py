"""Differences between us and the gateway: what they are called, opened once, closed when they are gone."""

from typing import Any

from django.db import connection
from django.db.models.functions import Now

from payments.models import Drift, DriftKind, Payment, PaymentStatus

FAILED = (PaymentStatus.FAILED, PaymentStatus.CANCELLED)
UNDECIDED = (PaymentStatus.PENDING, PaymentStatus.AUTHORIZED)

OPEN = """
    INSERT INTO payments_drift AS d (kind, gateway_id, payment_id, ours, theirs)
    VALUES (%s, %s, %s, %s, %s)
    ON CONFLICT (kind, gateway_id, payment_id) WHERE closed_at IS NULL
    DO UPDATE SET last_seen_at = clock_timestamp(), ours = excluded.ours, theirs = excluded.theirs"""


def between(payment: Payment, truth: dict[str, Any]) -> DriftKind | None:
    """Name the difference between a charge and its intent as found; None: they agree.

    `truth` is {status, amount_minor, currency, refunded_minor}; what went back is posted, and no difference.
    """
    taken = truth["status"] == "succeeded"
    if payment.status in FAILED:
        return DriftKind.CHARGED_THOUGH_FAILED if taken else None
    if payment.status in UNDECIDED:
        return DriftKind.UNDECIDED if taken or truth["status"] == "canceled" else None
    if not taken:
        return DriftKind.NOT_CHARGED
    same = (payment.amount_minor, payment.order.currency) == (truth["amount_minor"], truth["currency"])
    return None if same else DriftKind.OTHER_AMOUNT


def open_one(kind: DriftKind, *, payment: Payment | None, truth: dict[str, Any]) -> None:
    """Write a difference down, or that it is still there."""
    ours = (
        "nothing" if payment is None else f"{payment.status} {payment.amount_minor} {payment.order.currency}"
    )
    theirs = f"{truth['status']} {truth['amount_minor']} {truth['currency']}"
    with connection.cursor() as cursor:
        cursor.execute(OPEN, [str(kind), truth["id"], None if payment is None else payment.pk, ours, theirs])


def close(gateway_id: str) -> int:
    """Close what was open about an intent that agrees by now; give how many."""
    return Drift.objects.filter(gateway_id=gateway_id, closed_at=None).update(closed_at=Now())
