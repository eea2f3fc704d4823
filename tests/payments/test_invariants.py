"""Each check finds what was planted for it, and nothing where everything was done by the rules."""

import pytest
from django.db import connection
from django.utils import timezone

from operations.models import Operation
from operations.verify import violations
from payments import invariants
from payments.models import LedgerEntry, Order, Payment, Reservation
from tests.payments.buying import PRICE, go_on, once

pytestmark = pytest.mark.django_db(transaction=True)


def two_charges(buy, gateway):
    go_on(buy())
    with connection.cursor() as cursor:
        cursor.execute("DROP INDEX one_live_charge_per_order")
    Payment.objects.create(
        order=Order.objects.get(),
        kind="charge",
        amount_minor=1,
        operation_id=Payment.objects.get().operation_id,
    )


def undecided_for_ever(buy, gateway):
    gateway.fail(on="capture", stage="limiter", status=429)
    purchase = once(buy())
    Operation.objects.filter(id=purchase.id).update(status="ignored", finished_at=timezone.now())


def no_entry(buy, gateway):
    go_on(buy())
    Payment.objects.update(amount_minor=PRICE + 1)


def not_paid(buy, gateway):
    go_on(buy())
    Order.objects.update(status="pending", paid_at=None)


def too_much_back(buy, gateway):
    go_on(buy())
    entry = LedgerEntry.objects.get()
    LedgerEntry.objects.create(
        operation_id="2281f947-0000-4000-8000-000000000000",
        kind="refund",
        order=entry.order,
        debit="sales",
        credit="gateway",
        amount_minor=PRICE + 1,
        currency="EUR",
    )


def goods_forgotten(buy, gateway):
    purchase = go_on(buy())
    other = Operation.objects.exclude(id=purchase.id).first()
    Operation.objects.filter(id=other.id).update(status="ignored", finished_at=timezone.now())
    Reservation.objects.update(operation_id=other.id)


PLANTS = dict(
    zip(
        [what for _, what, _ in invariants.CHECKS],
        [two_charges, undecided_for_ever, no_entry, not_paid, too_much_back, goods_forgotten],
        strict=True,
    )
)


class TestViolations:
    @pytest.mark.parametrize("what", PLANTS)
    def test_name_what_was_planted(self, what, buy, gateway):
        PLANTS[what](buy, gateway)
        try:
            assert what in {violation.what for violation in violations()}
        finally:
            restore()

    def test_are_none_where_all_is_well(self, buy):
        go_on(buy())
        go_on(buy("o-2", method="pm_card_chargeDeclined"))

        assert violations() == []


def restore():
    """Put back the index that one of them has dropped."""
    Payment.objects.all().delete()
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE UNIQUE INDEX IF NOT EXISTS one_live_charge_per_order ON payments_payment (order_id)"
            " WHERE kind = 'charge' AND status IN ('pending', 'authorized', 'captured')"
        )
