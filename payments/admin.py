"""What is sold, ordered and paid, to read."""

from django.contrib import admin

from config.admin import ReadOnlyAdmin
from payments.models import Order, Payment, Product


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
        "created_at",
    )
    list_select_related = ("order",)
    list_filter = ("status", "kind")
    search_fields = ("order__number", "operation_id", "gateway_id")
    search_help_text = "Order, operation, gateway's id"
