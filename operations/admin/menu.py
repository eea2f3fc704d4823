"""The sidebar: what is looked at daily first."""

from typing import Any

from django.http import HttpRequest
from django.urls import reverse

from config.admin import CappedCount
from operations.admin import groups

BADGE_CAP = 1_000  # this count is made for every page

# (title, icon, address, permission to see it). Icons: https://fonts.google.com/icons
MENU = {
    "Operate": (
        ("Overview", "monitoring", "index", ""),
        ("Operations", "deployed_code", "operations_operation_changelist", "operations.view_operation"),
        ("Dead letters", "inbox", "operations_deadletter_changelist", "operations.view_deadletter"),
        ("By signature", "stacks", "operations_deadletter_groups", "operations.view_deadletter"),
        ("Unknown outcomes", "help", "operations_effect_settle", "operations.view_effect"),
        ("Holds and orders", "pan_tool", "operations_jobcontrol_order", "operations.view_jobcontrol"),
        ("Caches", "cached", "operations_cacheorder_caches", "operations.view_cacheorder"),
        ("Workers", "memory", "operations_workernode_changelist", "operations.view_workernode"),
        ("Audit", "history_edu", "operations_auditentry_changelist", "operations.view_auditentry"),
    ),
    "Records": (
        ("Transitions", "timeline", "operations_transition_changelist", "operations.view_transition"),
        ("Effects", "outbound", "operations_effect_changelist", "operations.view_effect"),
        ("Keys", "key", "operations_idempotencyrecord_changelist", "operations.view_idempotencyrecord"),
        ("Fences", "fence", "operations_resourcefence_changelist", "operations.view_resourcefence"),
        ("Holds", "hourglass", "operations_hold_changelist", "operations.view_hold"),
        ("Dependencies", "hub", "operations_dependency_changelist", "operations.view_dependency"),
        (
            "Owed after commit",
            "pending_actions",
            "operations_aftercommit_changelist",
            "operations.view_aftercommit",
        ),
        (
            "Bad messages",
            "mark_email_unread",
            "operations_badmessage_changelist",
            "operations.view_badmessage",
        ),
    ),
    "Inventory": (
        ("Items", "inventory_2", "inventory_inventoryitem_changelist", "inventory.view_inventoryitem"),
    ),
    "Payments": (
        ("Orders", "receipt_long", "payments_order_changelist", "payments.view_order"),
        ("Payments", "payments", "payments_payment_changelist", "payments.view_payment"),
        ("Differences", "balance", "payments_drift_changelist", "payments.view_drift"),
        ("Ledger", "menu_book", "payments_ledgerentry_changelist", "payments.view_ledgerentry"),
        ("Gateway events", "webhook", "payments_gatewayevent_changelist", "payments.view_gatewayevent"),
        (
            "Comparisons",
            "compare_arrows",
            "payments_reconciliation_changelist",
            "payments.view_reconciliation",
        ),
        ("Reservations", "bookmark", "payments_reservation_changelist", "payments.view_reservation"),
        ("Products", "sell", "payments_product_changelist", "payments.view_product"),
    ),
    "People": (
        ("Users", "person", "auth_user_changelist", "auth.view_user"),
        ("Groups", "group", "auth_group_changelist", "auth.view_group"),
    ),
}


def navigation(request: HttpRequest) -> list[dict[str, Any]]:
    """Give the sidebar of this person: a line for each page they may see."""
    return [
        {
            "title": title,
            "separator": bool(position),
            "items": [_item(request, *line) for line in lines if _may(request, line[3])],
        }
        for position, (title, lines) in enumerate(MENU.items())
    ]


def _item(request: HttpRequest, title: str, icon: str, name: str, permission: str) -> dict[str, Any]:
    link = reverse(f"admin:{name}")
    item: dict[str, Any] = {"title": title, "icon": icon, "link": link, "active": _is_open(request, link)}
    if name == "operations_deadletter_changelist" and (waiting := _waiting()):
        item["badge"] = str(waiting)
    return item


def _is_open(request: HttpRequest, link: str) -> bool:
    """Say whether the page is this line's; the groups have a line of their own below the dead letters'."""
    if link == reverse("admin:index") or request.path == reverse("admin:operations_deadletter_groups"):
        return request.path == link
    return request.path.startswith(link)


def _waiting() -> CappedCount:
    count = CappedCount(groups.waiting().order_by()[:BADGE_CAP].count())
    count.cap = BADGE_CAP
    return count


def _may(request: HttpRequest, permission: str) -> bool:
    return not permission or request.user.has_perm(permission)
