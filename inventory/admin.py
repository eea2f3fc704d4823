"""What users own, to read."""

from django.contrib import admin

from config.admin import ReadOnlyAdmin
from inventory.models import InventoryItem


@admin.register(InventoryItem)
class InventoryItemAdmin(ReadOnlyAdmin):
    """Written by inventory.sync alone: a change by hand would be overwritten by the next."""

    list_display = ("sku", "user", "quantity", "version")
    list_select_related = ("user",)
    search_fields = ("sku", "user__username")
    search_help_text = "SKU, owner"
