"""What the database refuses about products, orders and payments, whoever asks."""

import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from time import monotonic

import pytest
from django.contrib.auth.models import User
from django.db import DataError, IntegrityError, connection, connections, transaction
from django.db.models import ProtectedError

from payments.models import LIVE, Order, OrderStatus, Payment, PaymentKind, PaymentStatus, Product

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

# How long a second connection may take to reach the lock it is meant to wait for.
PATIENCE = timedelta(seconds=10)


def make_product(**changes) -> Product:
    fields = {"sku": "gems-100", "name": "100 gems", "price_minor": 499, "currency": "EUR", "stock": 3}
    return Product.objects.create(**fields | changes)


def make_customer(username: str = "ayu") -> User:
    return User.objects.create(username=username)


def make_order(**changes) -> Order:
    fields = {"number": "A-1", "quantity": 2, "amount_minor": 998, "currency": "EUR"}
    if "owner" not in changes:
        fields["owner"] = make_customer()
    if "product" not in changes:
        fields["product"] = make_product()
    return Order.objects.create(**fields | changes)


def make_payment(order: Order, **changes) -> Payment:
    fields = {"kind": PaymentKind.CHARGE, "amount_minor": order.amount_minor, "operation_id": uuid.uuid4()}
    return Payment.objects.create(order=order, **fields | changes)


@contextmanager
def refused_by(constraint: str):
    """Expect one constraint, by name, to refuse the block, and keep the test's transaction usable."""
    with pytest.raises(IntegrityError) as refusal, transaction.atomic():
        yield
    assert refusal.value.__cause__.diag.constraint_name == constraint


@pytest.mark.django_db
class TestProduct:
    def test_is_found_by_one_sku(self):
        make_product(sku="gems-100")

        with refused_by("payments_product_sku_key"):
            make_product(sku="gems-100")

    def test_has_a_sku(self):
        with refused_by("product_has_a_sku"):
            make_product(sku="")

    @pytest.mark.parametrize("price_minor", [0, -1])
    def test_is_never_free(self, price_minor):
        with refused_by("product_price_is_positive"):
            make_product(price_minor=price_minor)

    @pytest.mark.parametrize("currency", ["", "EU", "eur", "EÜR", "12A"])
    def test_names_its_currency_by_three_capitals(self, currency):
        with refused_by("product_currency_is_a_code"):
            make_product(currency=currency)

    def test_may_sell_out(self):
        assert make_product(stock=0).stock == 0

    def test_never_sells_what_is_not_there(self):
        product = make_product(stock=1)

        with refused_by("product_stock_is_not_negative"):
            Product.objects.filter(pk=product.pk).update(stock=-1)

    def test_is_kept_while_an_order_names_it(self):
        order = make_order()

        with pytest.raises(ProtectedError):
            order.product.delete()


@pytest.mark.django_db
class TestOrder:
    def test_begins_unpaid(self):
        order = make_order()

        order.refresh_from_db()

        assert (order.status, order.paid_at) == (OrderStatus.PENDING, None)
        assert order.created_at is not None

    def test_has_a_number_of_its_own_per_owner(self):
        first = make_order(number="A-1")

        with refused_by("one_order_per_owner_and_number"):
            make_order(number="A-1", owner=first.owner, product=first.product)

    def test_may_share_its_number_with_another_owners(self):
        first = make_order(number="A-1")

        second = make_order(number="A-1", owner=make_customer("budi"), product=first.product)

        assert second.pk != first.pk

    @pytest.mark.parametrize("number", ["", "A 1", "A/1", "A-1\n", "Ä-1"])
    def test_has_a_number_that_can_be_part_of_a_name(self, number):
        with refused_by("order_number_is_a_name"):
            make_order(number=number)

    def test_has_a_number_of_64_letters_at_most(self):
        assert make_order(number="n" * 64).pk
        Order.objects.update(number="A-1")

        with pytest.raises(DataError), transaction.atomic():
            Order.objects.update(number="n" * 65)

    @pytest.mark.parametrize("quantity", [0, -1])
    def test_asks_for_something(self, quantity):
        with refused_by("order_quantity_is_positive"):
            make_order(quantity=quantity)

    @pytest.mark.parametrize("amount_minor", [0, -998])
    def test_costs_something(self, amount_minor):
        with refused_by("order_amount_is_positive"):
            make_order(amount_minor=amount_minor)

    @pytest.mark.parametrize("currency", ["", "EU", "eur", "EÜR", "12A"])
    def test_names_its_currency_by_three_capitals(self, currency):
        with refused_by("order_currency_is_a_code"):
            make_order(currency=currency)

    def test_knows_no_other_status(self):
        with refused_by("order_status_is_known"):
            make_order(status="shipped")

    @pytest.mark.parametrize("status", [OrderStatus.PAID, OrderStatus.REFUNDED])
    def test_says_when_it_was_paid(self, status):
        with refused_by("order_paid_at_tells_when_it_was_paid"):
            make_order(status=status, paid_at=None)

    @pytest.mark.parametrize("status", [OrderStatus.PENDING, OrderStatus.CANCELLED])
    def test_was_paid_at_no_time_unless_it_was_paid(self, status):
        with refused_by("order_paid_at_tells_when_it_was_paid"):
            make_order(status=status, paid_at=NOON)

    def test_outlives_the_wish_to_delete_its_owner(self):
        order = make_order()

        with pytest.raises(ProtectedError):
            order.owner.delete()


@pytest.mark.django_db
class TestPayment:
    @pytest.mark.parametrize("amount_minor", [0, -998])
    def test_moves_something(self, amount_minor):
        with refused_by("payment_amount_is_positive"):
            make_payment(make_order(), amount_minor=amount_minor)

    def test_knows_no_other_kind(self):
        with refused_by("payment_status_fits_its_kind"):
            make_payment(make_order(), kind="gift")

    def test_knows_no_other_status(self):
        with refused_by("payment_status_fits_its_kind"):
            make_payment(make_order(), status="lost", finished_at=NOON)

    def test_is_not_refunded_when_it_is_a_charge(self):
        with refused_by("payment_status_fits_its_kind"):
            make_payment(make_order(), status=PaymentStatus.REFUNDED, finished_at=NOON)

    @pytest.mark.parametrize("status", [PaymentStatus.CAPTURED, PaymentStatus.CANCELLED])
    def test_takes_nothing_when_it_is_a_refund(self, status):
        with refused_by("payment_status_fits_its_kind"):
            make_payment(make_order(), kind=PaymentKind.REFUND, status=status, finished_at=NOON)

    @pytest.mark.parametrize(
        "status", [PaymentStatus.CAPTURED, PaymentStatus.FAILED, PaymentStatus.CANCELLED]
    )
    def test_says_when_it_ended(self, status):
        with refused_by("payment_finished_at_tells_when_it_ended"):
            make_payment(make_order(), status=status, finished_at=None)

    @pytest.mark.parametrize("status", [PaymentStatus.PENDING, PaymentStatus.AUTHORIZED])
    def test_ended_at_no_time_while_it_may_still_move(self, status):
        with refused_by("payment_finished_at_tells_when_it_ended"):
            make_payment(make_order(), status=status, finished_at=NOON)

    def test_answers_to_one_gateway_id_alone(self):
        order = make_order()
        make_payment(order, status=PaymentStatus.FAILED, finished_at=NOON, gateway_id="pi_1")

        with refused_by("one_payment_per_gateway_id"):
            make_payment(order, gateway_id="pi_1")

    def test_may_wait_for_its_gateway_id_beside_others(self):
        order = make_order()
        make_payment(order, status=PaymentStatus.FAILED, finished_at=NOON)

        assert make_payment(order).gateway_id == ""

    def test_keeps_its_order(self):
        order = make_order()
        make_payment(order)

        with pytest.raises(ProtectedError):
            order.delete()


@pytest.mark.django_db
class TestOneLiveChargePerOrder:
    @pytest.mark.parametrize("status", LIVE)
    def test_refuses_a_second_charge(self, status):
        order = make_order()
        finished_at = NOON if status == PaymentStatus.CAPTURED else None
        make_payment(order, status=status, finished_at=finished_at)

        with refused_by("one_live_charge_per_order"):
            make_payment(order)

    @pytest.mark.parametrize("status", [PaymentStatus.FAILED, PaymentStatus.CANCELLED])
    def test_lets_another_try_after_a_charge_that_took_nothing(self, status):
        order = make_order()
        make_payment(order, status=status, finished_at=NOON)

        assert make_payment(order).status == PaymentStatus.PENDING

    def test_wakes_no_dead_charge_beside_a_live_one(self):
        order = make_order()
        dead = make_payment(order, status=PaymentStatus.FAILED, finished_at=NOON)
        make_payment(order)

        with refused_by("one_live_charge_per_order"):
            Payment.objects.filter(pk=dead.pk).update(status=PaymentStatus.PENDING, finished_at=None)

    def test_does_not_count_refunds(self):
        order = make_order()
        make_payment(order, status=PaymentStatus.CAPTURED, finished_at=NOON)

        make_payment(order, kind=PaymentKind.REFUND, amount_minor=500)
        make_payment(order, kind=PaymentKind.REFUND, amount_minor=498)

        assert order.payments.filter(kind=PaymentKind.REFUND).count() == 2

    def test_does_not_charge_again_what_was_refunded(self):
        order = make_order()
        make_payment(order, status=PaymentStatus.CAPTURED, finished_at=NOON)
        make_payment(order, kind=PaymentKind.REFUND, status=PaymentStatus.REFUNDED, finished_at=NOON)

        with refused_by("one_live_charge_per_order"):
            make_payment(order)

    def test_leaves_other_orders_alone(self):
        first = make_order(number="A-1")
        second = make_order(number="A-2", owner=first.owner, product=first.product)

        make_payment(first)

        assert make_payment(second).pk


@pytest.mark.django_db(transaction=True)
class TestTwoChargesAtOnce:
    """Two connections charge one order; the second asks while the first has not committed."""

    def test_become_one_when_the_first_commits(self):
        order = make_order()

        with ThreadPoolExecutor(1) as pool:
            with transaction.atomic():
                first = make_payment(order)
                second = pool.submit(charge_on_a_connection_of_its_own, order)
                wait_until_blocked(second)

            with refused_by("one_live_charge_per_order"):
                second.result()

        assert list(order.payments.all()) == [first]

    def test_leave_the_way_free_when_the_first_rolls_back(self):
        order = make_order()

        with ThreadPoolExecutor(1) as pool:
            with transaction.atomic():
                make_payment(order)
                second = pool.submit(charge_on_a_connection_of_its_own, order)
                wait_until_blocked(second)
                transaction.set_rollback(True)

            accepted = second.result()

        assert list(order.payments.all()) == [accepted]


def charge_on_a_connection_of_its_own(order: Order) -> Payment:
    try:
        return make_payment(order)
    finally:
        connections.close_all()


def wait_until_blocked(other: Future) -> None:
    """Return when some connection waits for a lock that this one holds."""
    give_up_at = monotonic() + PATIENCE.total_seconds()
    with connection.cursor() as cursor:
        while monotonic() < give_up_at:
            cursor.execute(
                "SELECT count(*) FROM pg_locks"
                " WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
            )
            if cursor.fetchone()[0]:
                return
            assert not other.done(), other.exception()
    pytest.fail("nothing waited for this transaction")
