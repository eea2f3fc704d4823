"""Ana buys a lamp, and all that can go wrong does: the last part of the demo. Each docstring is a title."""

import json
from typing import Any

from deploy.local.console import Answer, Console
from deploy.local.stage import Stage, short
from deploy.local.truth import told

PRICE_MINOR = 1_200
LAMPS = 10
MAKE = f"""
from payments.models import Product
Product.objects.create(sku="lamp", name="Lamp", price_minor={PRICE_MINOR}, currency="EUR", stock={LAMPS})
"""
SETTINGS = {
    "STRIPE_CONNECT_SECONDS": "0.5",
    "STRIPE_TIMEOUT_SECONDS": "2",
    "ANSWER_MARGIN_SECONDS": "0.5",
    "LONGEST_LOOKUP_PAUSE_SECONDS": "2",
}
CHARGES = "SELECT status, gateway_id FROM payments_payment WHERE kind = 'charge' ORDER BY id"
ORDERS = "SELECT number, status FROM payments_order ORDER BY number"


def double_click(stage: Stage) -> None:
    """Ana clicks twice on "buy"; then her page, which has lost its key, asks once more."""
    stage.stack.manage("shell", "--no-imports", "--command", MAKE)
    first = _buy(stage, stage.ana, "lamp-1", key="ana-buys-1")
    second = _buy(stage, stage.ana, "lamp-1", key="ana-buys-1")
    stage.promise("a double click is one operation", kept=first == second, seen=f"{first}, {second}")
    stage.until_succeeded(first, "what was accepted is done")

    third = _buy(stage, stage.ana, "lamp-1", key="ana-buys-again")
    _until_over(stage, third)
    heard = stage.ana.operation(third).body
    stage.say(
        "ana", f"GET operation {short(third)} → {heard['status']} ({heard['reason']}), {heard['result']}"
    )
    stage.promise(
        "the same order under another key is a duplicate, and points at the first",
        kept=heard["reason"] == "duplicate" and heard["result"] == {"duplicate_of": first},
        seen=heard,
    )
    _charged(stage, first, third)


def gateway_drops(stage: Stage) -> None:
    """The gateway takes the money, and the line breaks before it says so."""
    stage.stack.gateway.fail(on="capture", drop=True)

    id = _buy(stage, stage.budi, "lamp-2", key="budi-buys-1")
    stage.wait(
        lambda: "outcome_unknown" in {move.reason for move in stage.truth.history(id)},
        promise="a lost answer is an outcome unknown, never a failure",
        seen=lambda: told(stage.truth.history(id)),
    )
    stage.say("database", f"{short(id)}: nobody knows whether it is paid, and nothing is sent again")
    history = stage.until_succeeded(id, "it is looked up, and done")
    stage.promise("looking up costs no attempt", kept=history[-1].attempt == 1, seen=told(history))
    _charged(stage, id)


def killed_after_capture(stage: Stage) -> None:
    """Kill -9 takes the worker when the money is taken and nothing of ours says so."""
    stage.stack.gateway.fail(on="capture", delay_seconds=30)

    id = _buy(stage, stage.citra, "lamp-3", key="citra-buys-1")
    stage.wait(
        lambda: stage.stack.gateway.journal("captured", operation_id=id),
        promise="the gateway takes the money",
        seen=lambda: told(stage.truth.history(id)),
    )
    stage.stack.worker.kill(whom="group")
    stage.say("worker", "dead; the gateway has taken the money")
    stage.stack.worker.restart()
    stage.until_succeeded(id, "what a dead worker sent is looked up, and done")
    _charged(stage, id)


def webhooks_late(stage: Stage) -> None:
    """The gateway's events come late, twice, and the last first."""
    before = stage.truth.rows(ORDERS)
    events = [event["id"] for event in stage.stack.gateway.events()]
    statuses = stage.stack.gateway.deliver([*reversed(events), *reversed(events)])
    stage.say("gateway", f"tells of {len(events)} events, twice and backwards → {set(statuses)}")
    stage.promise("each is stored and answered", kept=set(statuses) == {200}, seen=statuses)
    kept = stage.truth.count("payments_gatewayevent")
    stage.promise("each is kept once", kept=kept == len(events), seen=f"{kept} of {len(events)}")
    stage.wait(
        lambda: not stage.truth.count("payments_gatewayevent", "applied_at IS NULL"),
        promise="each is looked into",
        seen=lambda: stage.truth.count("payments_gatewayevent", "applied_at IS NULL"),
    )
    after = stage.truth.rows(ORDERS)
    stage.promise("what is paid stays paid", kept=before == after, seen=after)


def books_balanced(stage: Stage) -> None:
    """At the end the gateway's journal, the orders and the ledger are compared."""
    told_of = json.loads(stage.stack.manage("reconcile", "all", "--json"))
    stage.say("reconcile", json.dumps(told_of))
    stage.promise(
        "the gateway and the ledger agree, to the cent",
        kept=not told_of["balance"]["differs_minor"] and not told_of["open_drifts"],
        seen=told_of,
    )
    orders, charges = stage.truth.rows(ORDERS), stage.truth.rows(CHARGES)
    taken = stage.stack.gateway.journal("captured")
    stage.say("gateway", f"{len(taken)} charges of {sum(each['amount'] for each in taken)} EUR (minor units)")
    paid = {order["status"] for order in orders} == {"paid"}
    stage.promise(
        "one charge an order, every order paid",
        kept=paid and len(orders) == len(taken) == len(charges) == 3,
        seen=f"{orders}, {charges}",
    )
    lamps = stage.truth.rows("SELECT stock FROM payments_product")[0]["stock"]
    stage.promise("the lamps are counted", kept=lamps == LAMPS - len(orders), seen=lamps)
    verified = json.loads(stage.stack.manage("verify", "--json"))
    stage.promise("no invariant is broken", kept=not verified["violations"], seen=verified)


def _buy(stage: Stage, console: Console, order: str, *, key: str) -> str:
    """Ask for a lamp, and give the operation that was promised."""
    answer: Answer = console.buy(key, _lamp(order))
    stage.heard(console, f"POST purchases, order {order}, key {key}", answer)
    stage.promise("a purchase is accepted", kept=answer.status in (200, 202), seen=answer.body)
    return answer.id


def _lamp(order: str) -> dict[str, Any]:
    return {
        "order_id": order,
        "sku": "lamp",
        "quantity": 1,
        "amount_minor": PRICE_MINOR,
        "currency": "EUR",
        "payment_method": "pm_card_visa",
    }


def _until_over(stage: Stage, id: str) -> None:
    stage.wait(
        lambda: stage.truth.operation(id).get("finished_at"),
        promise="what was accepted comes to an end",
        seen=lambda: told(stage.truth.history(id)),
    )


def _charged(stage: Stage, id: str, *others: str) -> None:
    """Look into the gateway's own journal: one charge, and none for the others."""
    taken = [len(stage.stack.gateway.journal("captured", operation_id=each)) for each in (id, *others)]
    stage.say("gateway", f"took money for {short(id)}: {taken[0]} time")
    stage.promise("the gateway has one charge", kept=taken == [1, *(0 for _ in others)], seen=taken)
