"""What of the inventory is cached. Read at start in every process, as jobs are."""

from collections import Counter
from datetime import datetime
from typing import Any

from django.db.models import Max

from inventory.models import Grant, InventoryItem
from operations.accept import applied_at, applied_version
from operations.cache import Cached

VIEW_SECONDS = 600


def load(user_id: int) -> dict[str, Any]:
    """Read {version, granted, items: [{sku, quantity}]}: what the provider says, and what was bought here.

    The version first, so it is never newer than the items. `granted` is how many grants are in them.
    """
    version = applied_version(f"inventory:user:{user_id}")
    grants = list(Grant.objects.filter(user_id=user_id).values_list("sku", "quantity"))
    owned = Counter(dict(InventoryItem.objects.filter(user_id=user_id).values_list("sku", "quantity")))
    for sku, quantity in grants:
        owned[sku] += quantity
    items = [{"sku": sku, "quantity": owned[sku]} for sku in sorted(owned)]
    return {"version": version, "granted": len(grants), "items": items}


def last_change(user_id: int) -> datetime | None:
    """Tell when a snapshot or a grant was last applied, for comparison with what is cached."""
    granted = Grant.objects.filter(user_id=user_id).aggregate(last=Max("created_at"))["last"]
    return max(filter(None, [applied_at(f"inventory:user:{user_id}"), granted]), default=None)


view = Cached(
    "inventory:view", parts=("user_id",), load=load, ttl_seconds=VIEW_SECONDS, changed_at=last_change
)
