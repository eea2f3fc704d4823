"""What a person has ordered for a cache at run time: other times, or nothing stale."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.db.models.functions import Now

from operations.cache_flights import chores
from operations.models import AuditEntry, CacheOrder

LOOK_SECONDS = 10.0  # between two looks of a process; an order counts everywhere after so long
LONGEST_REASON = 300  # characters


class BadOrder(ValueError):
    """An order that cannot be carried out, and why."""


@dataclass(frozen=True)
class Order:
    """What is ordered; None: as declared."""

    soft_seconds: float | None = None
    jitter: float | None = None
    revalidate: bool = True  # serve what is stale while it is rebuilt

    def told(self) -> dict[str, Any]:
        """Give it as JSON."""
        return {"soft_seconds": self.soft_seconds, "jitter": self.jitter, "revalidate": self.revalidate}


AS_DECLARED = Order()


class Orders:
    """What this process knows of the orders."""

    def __init__(self) -> None:
        """Know of none."""
        self._known: dict[str, Order] = {}
        self.look_at = 0.0

    def of(self, kind: str) -> Order:
        """Give what is ordered for a kind of cached value, as of at most some seconds ago."""
        now = time.monotonic()
        if now >= self.look_at:
            self.look_at = now + LOOK_SECONDS
            chores.do("orders", self.look)
        return self._known.get(kind, AS_DECLARED)

    def look(self) -> None:
        """Read the orders anew."""
        self._known = stored()


orders = Orders()


def stored() -> dict[str, Order]:
    """Read what is ordered for each kind."""
    rows = CacheOrder.objects.values_list("cache", "soft_seconds", "jitter", "revalidate")
    return {kind: Order(soft, jitter, revalidate) for kind, soft, jitter, revalidate in rows}


@transaction.atomic
def change(
    kind: str, become: Callable[[Order], Order], *, actor: str, reason: str, request_id: str = ""
) -> Order:
    """Order something for a kind, with its audit entry; `become` makes the new order of the old one.

    Opens a transaction, in which the old one stays what it is. Every process follows within seconds.

    Raises:
        BadOrder: there is no reason, or it is too long; or what `become` raises.
    """
    check(reason)
    about = {"reason": reason.strip(), "actor": actor}
    CacheOrder.objects.get_or_create(cache=kind, defaults=about)
    row = CacheOrder.objects.select_for_update(no_key=True).get(cache=kind)
    before = Order(row.soft_seconds, row.jitter, row.revalidate)
    order = become(before)
    CacheOrder.objects.filter(cache=kind).update(**order.told(), **about, changed_at=Now())
    audit("cache.order", kind, before.told(), order.told(), **about, request_id=request_id)
    return order


def check(reason: str) -> None:
    """Want to be told why.

    Raises:
        BadOrder: there is no reason, or it is too long.
    """
    if not 0 < len(reason.strip()) <= LONGEST_REASON:
        raise BadOrder(f"say why, in 1 to {LONGEST_REASON} characters: it is kept")


def audit(action: str, kind: str, before: dict[str, Any], after: dict[str, Any], **said: str) -> None:
    """Write down what was done to a kind; `said` are actor, reason and request_id."""
    AuditEntry.objects.create(action=action, target=f"cache:{kind}", before=before, after=after, **said)
