"""What is sold, who ordered it, and the money that moved for it.

Money is an integer count of the currency's minor unit (cents, pence, yen), never a float. What must
hold is a constraint of the database, so it also holds for code that has not read this page.
"""

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

# The shape of an ISO 4217 code. Which currencies we take is for the gateway to say.
CURRENCY = r"^[A-Z]{3}$"

# The client chooses it, and it becomes part of a resource's name: the letters of an idempotency key,
# and few enough to be read out on the telephone.
ORDER_NUMBER = r"^[A-Za-z0-9._:~-]{1,64}$"


class OrderStatus(models.TextChoices):
    PENDING = "pending"  # not paid; after a charge that failed another may be tried
    PAID = "paid"
    CANCELLED = "cancelled"  # given up before any money was taken
    REFUNDED = "refunded"  # paid, and all of it given back


class PaymentKind(models.TextChoices):
    CHARGE = "charge"  # from the customer to us
    REFUND = "refund"  # from us to the customer


class PaymentStatus(models.TextChoices):
    PENDING = "pending"  # the gateway was asked or is about to be; also while its answer is unknown
    AUTHORIZED = "authorized"  # held on the customer's card, not taken
    CAPTURED = "captured"
    REFUNDED = "refunded"
    FAILED = "failed"
    CANCELLED = "cancelled"  # let go before the capture


# A charge that took money, or still may. A refund is its own row and does not end the charge it returns:
# an order that was paid and refunded is never charged again.
LIVE = (PaymentStatus.PENDING, PaymentStatus.AUTHORIZED, PaymentStatus.CAPTURED)

_ONCE_PAID = (OrderStatus.PAID, OrderStatus.REFUNDED)
_STATUSES_OF_A_CHARGE = (*LIVE, PaymentStatus.FAILED, PaymentStatus.CANCELLED)
_STATUSES_OF_A_REFUND = (PaymentStatus.PENDING, PaymentStatus.REFUNDED, PaymentStatus.FAILED)
_UNFINISHED = (PaymentStatus.PENDING, PaymentStatus.AUTHORIZED)


class Product(models.Model):
    """Something a customer can buy, and how many are left."""

    sku = models.CharField(max_length=64, unique=True)
    name = models.CharField(max_length=200)
    price_minor = models.BigIntegerField()
    currency = models.CharField(max_length=3)
    stock = models.IntegerField()

    class Meta:
        constraints = [
            models.CheckConstraint(name="product_has_a_sku", condition=~Q(sku="")),
            models.CheckConstraint(name="product_price_is_positive", condition=Q(price_minor__gt=0)),
            models.CheckConstraint(name="product_currency_is_a_code", condition=Q(currency__regex=CURRENCY)),
            models.CheckConstraint(name="product_stock_is_not_negative", condition=Q(stock__gte=0)),
        ]

    def __str__(self) -> str:
        return self.sku


class Order(models.Model):
    """A customer's wish to buy, at the price agreed on when it was made."""

    # The client's own name for it, `order_id` in the API. Two customers may both have an order "1".
    number = models.CharField(max_length=64)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.PROTECT,
        related_name="orders",
        db_index=False,  # one_order_per_owner_and_number begins with it
    )
    product = models.ForeignKey(Product, on_delete=models.PROTECT, related_name="orders")
    quantity = models.IntegerField()
    amount_minor = models.BigIntegerField()
    currency = models.CharField(max_length=3)
    status = models.CharField(max_length=16, choices=OrderStatus, default=OrderStatus.PENDING)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    paid_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(name="one_order_per_owner_and_number", fields=["owner", "number"]),
            models.CheckConstraint(name="order_number_is_a_name", condition=Q(number__regex=ORDER_NUMBER)),
            models.CheckConstraint(name="order_quantity_is_positive", condition=Q(quantity__gt=0)),
            models.CheckConstraint(name="order_amount_is_positive", condition=Q(amount_minor__gt=0)),
            models.CheckConstraint(name="order_currency_is_a_code", condition=Q(currency__regex=CURRENCY)),
            models.CheckConstraint(name="order_status_is_known", condition=Q(status__in=OrderStatus.values)),
            models.CheckConstraint(
                name="order_paid_at_tells_when_it_was_paid",
                condition=Q(status__in=_ONCE_PAID, paid_at__isnull=False)
                | (~Q(status__in=_ONCE_PAID) & Q(paid_at__isnull=True)),
            ),
        ]

    def __str__(self) -> str:
        return self.number


class Payment(models.Model):
    """Money that moves, moved or was to move for one order, in the order's currency."""

    order = models.ForeignKey(Order, on_delete=models.PROTECT, related_name="payments")
    kind = models.CharField(max_length=16, choices=PaymentKind)
    amount_minor = models.BigIntegerField()
    status = models.CharField(max_length=16, choices=PaymentStatus, default=PaymentStatus.PENDING)

    # The operation that moves it. An id and no foreign key: operations are purged after a month, money never.
    operation_id = models.UUIDField()

    # What the gateway calls it; empty until it has told us.
    gateway_id = models.CharField(max_length=255, blank=True, default="")

    # Until when what is authorised can be captured, as the gateway says.
    capture_before = models.DateTimeField(null=True, blank=True)

    created_at = models.DateTimeField(db_default=Now(), editable=False)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                name="one_live_charge_per_order",
                fields=["order"],
                condition=Q(kind=PaymentKind.CHARGE, status__in=LIVE),
            ),
            models.UniqueConstraint(
                name="one_payment_per_gateway_id",
                fields=["gateway_id"],
                condition=~Q(gateway_id=""),
            ),
            models.CheckConstraint(name="payment_amount_is_positive", condition=Q(amount_minor__gt=0)),
            models.CheckConstraint(
                name="payment_status_fits_its_kind",
                condition=Q(kind=PaymentKind.CHARGE, status__in=_STATUSES_OF_A_CHARGE)
                | Q(kind=PaymentKind.REFUND, status__in=_STATUSES_OF_A_REFUND),
            ),
            models.CheckConstraint(
                name="payment_finished_at_tells_when_it_ended",
                condition=Q(status__in=_UNFINISHED, finished_at__isnull=True)
                | (~Q(status__in=_UNFINISHED) & Q(finished_at__isnull=False)),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} of {self.amount_minor} for order {self.order_id}"


class Reservation(models.Model):
    """What is set aside of a product for an order; released, or sold with the order's payment."""

    order = models.OneToOneField(Order, on_delete=models.PROTECT, related_name="reservation")
    product = models.ForeignKey(Product, on_delete=models.PROTECT, related_name="reservations")
    quantity = models.IntegerField()
    operation_id = models.UUIDField()  # whose it is; an id and no foreign key, as in Payment
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    released_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(name="reservation_quantity_is_positive", condition=Q(quantity__gt=0)),
        ]

    def __str__(self) -> str:
        return f"{self.quantity} for order {self.order_id}"


class EntryKind(models.TextChoices):
    CAPTURE = "capture"  # the gateway owes us what the customer paid
    REFUND = "refund"  # and no longer owes what went back


class LedgerEntry(models.Model):
    """Money that changed accounts. Double entry in one row, so none can be written that does not balance.

    Rows are never changed or deleted, the database sees to it; a correction is a row the other way round.
    """

    operation_id = models.UUIDField()
    kind = models.CharField(max_length=16, choices=EntryKind)
    order = models.ForeignKey(Order, on_delete=models.PROTECT, related_name="entries")
    debit = models.CharField(max_length=32)  # the account that has more now: "gateway", "sales"
    credit = models.CharField(max_length=32)  # the account that it comes from
    amount_minor = models.BigIntegerField()
    currency = models.CharField(max_length=3)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        verbose_name_plural = "ledger entries"
        constraints = [
            models.UniqueConstraint(name="one_entry_a_kind", fields=["operation_id", "kind"]),
            models.CheckConstraint(name="entry_amount_is_positive", condition=Q(amount_minor__gt=0)),
            models.CheckConstraint(name="entry_has_two_sides", condition=~Q(debit=models.F("credit"))),
            models.CheckConstraint(name="entry_currency_is_a_code", condition=Q(currency__regex=CURRENCY)),
        ]

    def __str__(self) -> str:
        return f"{self.kind} of {self.amount_minor} {self.currency} for order {self.order_id}"


class GatewayEvent(models.Model):
    """What the gateway told us of by itself: a hint to look. Kept as it came, but for what we don't keep."""

    event_id = models.CharField(max_length=255, unique=True)
    type = models.CharField(max_length=100)
    object_id = models.CharField(max_length=255, blank=True)  # the payment intent that it is about
    told_at = models.DateTimeField()  # by the gateway's clock; decides nothing
    received_at = models.DateTimeField(db_default=Now(), editable=False)
    operation_id = models.UUIDField(null=True)  # that looks; none for kinds that mean nothing to us
    outcome = models.CharField(max_length=100, blank=True)  # what came of it, in words
    applied_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [models.Index(fields=["object_id"], name="event_of_intent")]

    def __str__(self) -> str:
        return f"{self.type} {self.event_id}"


class DriftKind(models.TextChoices):
    """How we and the gateway may differ."""

    UNDECIDED = "undecided"  # we do not know, and the gateway does: the operation looks again
    NO_OBJECT = "no_object"  # we do not know, and the gateway knows nothing, after its window
    CHARGED_THOUGH_FAILED = "charged_though_failed"  # we say failed or cancelled, and it was taken
    NOT_CHARGED = "not_charged"  # we say captured, and it was not, or went back
    OTHER_AMOUNT = "other_amount"  # we say captured, and it was another amount or currency
    ORPHAN = "orphan"  # taken with our metadata, and nothing of ours knows of it


class Drift(models.Model):
    """A difference between us and the gateway, open until a sweep finds it gone or a person has closed it."""

    kind = models.CharField(max_length=32, choices=DriftKind)
    gateway_id = models.CharField(max_length=255, blank=True)
    payment = models.ForeignKey(Payment, on_delete=models.PROTECT, null=True, related_name="drifts")
    ours = models.CharField(max_length=100, blank=True)
    theirs = models.CharField(max_length=100, blank=True)
    first_seen_at = models.DateTimeField(db_default=Now(), editable=False)
    last_seen_at = models.DateTimeField(db_default=Now())
    closed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                name="one_open_drift_a_kind",
                fields=["kind", "gateway_id", "payment"],
                condition=Q(closed_at__isnull=True),
                nulls_distinct=False,
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.gateway_id}"


class Reconciliation(models.Model):
    """When each kind of comparison was made last, and what it found."""

    name = models.CharField(max_length=32, primary_key=True)
    succeeded_at = models.DateTimeField()
    swept_until = models.DateTimeField(null=True)  # by the gateway's creation times
    counts = models.JSONField(default=dict)

    def __str__(self) -> str:
        return self.name
