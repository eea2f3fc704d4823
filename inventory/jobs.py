"""The jobs of this app."""

from datetime import timedelta
from operator import itemgetter
from typing import Any

from django.db import connection
from rest_framework import serializers

from inventory import provider
from inventory.models import Grant
from operations.jobs import Backoff, OwnerID, Payload, job

# Rows of the snapshot are written where they are newer; rows it does not name are gone at the provider.
UPSERT = """
    WITH written AS (
        INSERT INTO inventory_inventoryitem AS item (user_id, sku, quantity, version)
        SELECT %(user_id)s, sku, quantity, %(version)s
        FROM unnest(%(skus)s::text[], %(quantities)s::int[]) AS snapshot (sku, quantity)
        ON CONFLICT (user_id, sku) DO UPDATE SET quantity = excluded.quantity, version = excluded.version
        WHERE item.version < excluded.version
    )
    DELETE FROM inventory_inventoryitem
    WHERE user_id = %(user_id)s AND version < %(version)s AND sku <> ALL(%(skus)s::text[])"""


class SyncRequest(Payload):
    """Nothing needs to be sent: whose inventory it is, the credentials say."""

    user_id = OwnerID()


@job(
    "inventory.sync",
    route="inventory/sync",
    payload=SyncRequest,
    resource="inventory:user:{user_id}",
    dependency=provider.DEPENDENCY,
    call=provider.fetch_snapshot,
    version=itemgetter("version"),
    invalidates=["inventory:view:{user_id}"],
    retry=Backoff(5, 15, 45, 120),
    soft_limit=30,
    hard_limit=40,
    deadline=timedelta(hours=1),
    key_ttl=timedelta(hours=24),
)
def sync(run: Any, answer: dict[str, Any], *, user_id: int) -> dict[str, Any]:
    """Copy a user's inventory from the provider."""
    items = {item["sku"]: item["quantity"] for item in answer["items"]}
    values = {
        "user_id": user_id,
        "version": answer["version"],
        "skus": list(items),
        "quantities": list(items.values()),
    }
    with connection.cursor() as cursor:
        cursor.execute(UPSERT, values)
    return {"version": answer["version"], "items": len(items)}


class GrantRequest(Payload):
    """What was bought, and under which order."""

    order_id = serializers.CharField(max_length=64)
    sku = serializers.CharField(max_length=64)
    quantity = serializers.IntegerField(min_value=1)
    user_id = OwnerID()


@job(
    "inventory.grant",
    payload=GrantRequest,
    resource="inventory:user:{user_id}",
    invalidates=["inventory:view:{user_id}"],
    deadline=timedelta(days=1),
)
def grant(run: Any, answer: None, *, user_id: int, order_id: str, sku: str, quantity: int) -> dict[str, Any]:
    """Give a user what was bought, once an order."""
    Grant.objects.get_or_create(
        user_id=user_id, order_id=order_id, defaults={"sku": sku, "quantity": quantity}
    )
    return {"sku": sku, "quantity": quantity}
