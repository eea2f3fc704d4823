"""What a person does to a cache: clear it, or give it other times. Each with who and why, in the audit."""

from dataclasses import replace
from typing import Any

from django.db import transaction

from operations import cache_orders, cache_store
from operations.cache import Cached
from operations.cache_orders import AS_DECLARED, BadOrder, Order


def clear(cached: Cached, *, actor: str, reason: str, request_id: str = "") -> int:
    """Delete all values of a cache and nothing else; give how many. Reads load anew, each value once.

    Raises:
        BadOrder: there is no reason, or it is too long.
        redis.exceptions.RedisError: the cache is away.
    """
    cache_orders.check(reason)
    about = {"actor": actor, "reason": reason, "request_id": request_id}
    with transaction.atomic():  # it is not cleared unless that is written down
        values = sum(1 for _ in cache_store.keys_of("value", cached.name))
        cache_orders.audit("cache.clear", cached.name, {"values": values}, {"values": 0}, **about)
        return cache_store.clear(cached.name)


def order(
    cached: Cached, wanted: dict[str, Any], *, actor: str, reason: str, request_id: str = ""
) -> dict[str, Any]:
    """Order other times; what is None in `wanted` stays as it is. Gives what is ordered now, as JSON.

    Every process follows within seconds.

    Args:
        cached: Which cache.
        wanted: soft_seconds, jitter (0 to 1), revalidate.
        actor: Who orders it.
        reason: Why.
        request_id: Of the request that carried the order.

    Raises:
        BadOrder: it cannot be kept, orders nothing, or there is no reason.
    """
    said = {name: value for name, value in wanted.items() if value is not None}
    if not said:
        raise BadOrder("say what to order: soft, jitter or revalidate")

    def become(before: Order) -> Order:
        ordered = replace(before, **said)
        fault = cached.allows(ordered)
        if fault:
            raise BadOrder(f"{cached.name}: {fault}")
        return ordered

    ordered = cache_orders.change(cached.name, become, actor=actor, reason=reason, request_id=request_id)
    return {"cache": cached.name, **ordered.told()}


def reset(cached: Cached, *, actor: str, reason: str, request_id: str = "") -> dict[str, Any]:
    """Take back what was ordered.

    Raises:
        BadOrder: there is no reason, or it is too long.
    """
    as_declared = cache_orders.change(
        cached.name, lambda before: AS_DECLARED, actor=actor, reason=reason, request_id=request_id
    )
    return {"cache": cached.name, **as_declared.told()}
