"""What is sold, ordered and paid, and how we differ from the gateway, to read."""

from django.contrib import admin

from config.admin import ReadOnlyAdmin
from payments.models import (
    Drift,
    GatewayEvent,
    LedgerEntry,
    Order,
    Payment,
    Product,
    Reconciliation,
    Reservation,
)


@admin.register(Product)
class ProductAdmin(ReadOnlyAdmin):
    """Things to buy."""

    list_display = ("sku", "name", "price_minor", "currency", "stock")
    search_fields = ("sku",)
    search_help_text = "SKU"


@admin.register(Order)
class OrderAdmin(ReadOnlyAdmin):
    """Wishes to buy."""

    list_display = (
        "number",
        "owner",
        "product",
        "quantity",
        "amount_minor",
        "currency",
        "status",
        "created_at",
    )
    list_select_related = ("owner", "product")
    list_filter = ("status",)
    search_fields = ("number", "owner__username", "product__sku")
    search_help_text = "Number, owner, SKU"


@admin.register(Payment)
class PaymentAdmin(ReadOnlyAdmin):
    """Money that moves or moved."""

    list_display = (
        "id",
        "order",
        "kind",
        "amount_minor",
        "status",
        "operation_id",
        "gateway_id",
        "capture_before",
        "created_at",
    )
    list_select_related = ("order",)
    list_filter = ("status", "kind")
    search_fields = ("order__number", "operation_id", "gateway_id")
    search_help_text = "Order, operation, gateway's id"


@admin.register(Reservation)
class ReservationAdmin(ReadOnlyAdmin):
    """What is set aside."""

    list_display = ("order", "product", "quantity", "operation_id", "created_at", "released_at")
    list_select_related = ("order", "product")
    search_fields = ("order__number", "operation_id")
    search_help_text = "Order, operation"


@admin.register(LedgerEntry)
class LedgerEntryAdmin(ReadOnlyAdmin):
    """The books."""

    list_display = (
        "id",
        "kind",
        "order",
        "debit",
        "credit",
        "amount_minor",
        "currency",
        "operation_id",
        "created_at",
    )
    list_select_related = ("order",)
    list_filter = ("kind", "currency")
    search_fields = ("order__number", "operation_id")
    search_help_text = "Order, operation"


@admin.register(GatewayEvent)
class GatewayEventAdmin(ReadOnlyAdmin):
    """What the gateway has told us."""

    list_display = ("event_id", "type", "object_id", "told_at", "received_at", "outcome", "operation_id")
    list_filter = ("type",)
    search_fields = ("event_id", "object_id", "operation_id")
    search_help_text = "Event, intent, operation"


@admin.register(Drift)
class DriftAdmin(ReadOnlyAdmin):
    """Where we and the gateway differ."""

    list_display = (
        "id",
        "kind",
        "gateway_id",
        "payment",
        "ours",
        "theirs",
        "first_seen_at",
        "last_seen_at",
        "closed_at",
    )
    list_select_related = ("payment",)
    list_filter = (("closed_at", admin.EmptyFieldListFilter), "kind")
    search_fields = ("gateway_id",)
    search_help_text = "Gateway's id"


@admin.register(Reconciliation)
class ReconciliationAdmin(ReadOnlyAdmin):
    """When we have compared last."""

    list_display = ("name", "succeeded_at", "swept_until", "counts")
