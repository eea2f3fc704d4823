"""What users own."""

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now


class Grant(models.Model):
    """What a user has bought here. Its own rows: a snapshot of the provider knows nothing of them."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+", db_index=False)
    order_id = models.CharField(max_length=64)
    sku = models.CharField(max_length=100)
    quantity = models.IntegerField()
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "order_id"], name="one_grant_an_order"),
            models.CheckConstraint(condition=Q(quantity__gt=0), name="grant_not_empty"),
        ]

    def __str__(self) -> str:
        return f"{self.quantity} of {self.sku} for order {self.order_id}"


class InventoryItem(models.Model):
    """How many of one thing a user owns, as of the provider's `version`."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+", db_index=False)
    sku = models.CharField(max_length=100)
    quantity = models.IntegerField()
    version = models.BigIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "sku"], name="one_row_an_item"),
            models.CheckConstraint(condition=Q(quantity__gte=0), name="quantity_not_negative"),
        ]

    def __str__(self) -> str:
        return f"{self.quantity} of {self.sku}"
