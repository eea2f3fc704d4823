"""The addresses of the inventory."""

from django.urls import path

from inventory.api import InventoryView

urlpatterns = [path("v1/inventory", InventoryView.as_view(), name="inventory")]
