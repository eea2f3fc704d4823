"""Many purchases while the gateway drops answers and workers are killed: one charge each, or none."""

import random
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx
import pytest

from deploy.local.stack import Stack
from tests.crashes.judge import by_verify
from tests.crashes.load import insist_on
from tests.faults.effects import serving
from tests.faults.lab import LAB, PRICE_MINOR, Lab

pytestmark = [pytest.mark.nemesis, pytest.mark.embedded]

CLIENTS = 8
KILL_EVERY_SECONDS = 3.0
SETTLE_SECONDS = 240.0
DECLINED, BOUGHT_TWICE = 0.1, 0.2  # shares of the orders
PROCESSES = ("gateway", "web", "worker-inventory", "worker-inventory#2", "relay")
# Outages are short here, and what a budget would put off would be put off for longer than the test lasts.
SETTINGS = {
    **LAB,
    "WORKER_SLOTS": "3",
    "BREAKER_FAILURES": "1000000",
    "BREAKER_RETRY_SHARE": "1",
    "BREAKER_FREE_RETRIES": "1000000",
}
OPEN = """
    SELECT count(*) AS n FROM operations_operation
    WHERE job_type = 'payments.purchase' AND status NOT IN ('succeeded', 'ignored', 'failed_permanent')"""
BOOKS = """
    SELECT (SELECT count(*) FROM payments_order WHERE status = 'paid') AS paid,
        (SELECT count(*) FROM payments_payment WHERE kind = 'charge' AND status = 'captured') AS captured,
        (SELECT count(*) FROM payments_payment WHERE status IN ('pending', 'authorized')) AS undecided,
        (SELECT COALESCE(sum(amount_minor), 0)::bigint FROM payments_ledgerentry) AS ledger,
        (SELECT count(*) FROM payments_order) AS orders,
        (SELECT stock FROM payments_product) AS stock"""
UNEXPLAINED = """
    SELECT o.id, o.reason, d.error FROM operations_operation AS o
    JOIN operations_operationdata AS d ON d.operation_id = o.id
    WHERE o.job_type = 'payments.purchase' AND o.status = 'failed_permanent'
        AND o.reason <> 'business_rejected'"""


@pytest.fixture
def lab(tmp_path):
    with (
        serving() as effects,
        Stack(tmp_path, processes=PROCESSES, env={**SETTINGS, "EFFECTS_URL": effects.url}) as stack,
        closing(Lab(stack, effects)) as lab,
    ):
        yield lab


@pytest.fixture
def count(pytestconfig):
    return pytestconfig.getoption("purchases", 100)


def buy(lab, user, dice, order, method):
    """Send one purchase until it is answered, sometimes again under a key that is new."""
    body = {
        "order_id": order,
        "sku": "lamp",
        "quantity": 1,
        "amount_minor": PRICE_MINOR,
        "currency": "EUR",
        "payment_method": method,
    }
    again = dice.random() < BOUGHT_TWICE
    return [
        insist_on(user, "purchases", body, excused=httpx.HTTPError, patience_seconds=90)
        for _ in range(2 if again else 1)
    ]


def kill_now_and_then(lab, dice, until):
    """Kill a worker's child or all of it every three seconds, and start again what has died."""
    kills = 0
    while not until():
        began = time.monotonic()
        victim = dice.choice(lab.workers)
        if victim.is_alive():
            victim.kill(whom=dice.choice(("group", "children")))
            kills += 1
        while time.monotonic() < began + KILL_EVERY_SECONDS and not until():
            for process in lab.stack.processes.values():
                if not process.is_alive():
                    process.launch()
            time.sleep(0.1)
    return kills


@pytest.mark.timeout(900)
def test_purchases_are_charged_once_whatever_dies(lab, count, tell, pytestconfig):
    dice = random.Random(pytestconfig.getoption("seed", 1) or 1)
    lab.stock("lamp", 10 * count)
    users = [lab.new_user() for _ in range(5)]
    for on in ("create", "confirm", "capture", "cancel"):
        lab.gateway.fail(on=on, drop=True, times=None, share=0.1)
        lab.gateway.fail(on=on, stage="limiter", status=503, times=None, share=0.05)
        lab.gateway.fail(on=on, stage="limiter", status=502, times=None, share=0.05)
    lab.gateway.hooks(doubled=True, shuffled=True)
    wishes = [
        (dice.choice(users), uuid.uuid4().hex, dice.random() < DECLINED, random.Random(dice.random()))
        for _ in range(count)
    ]

    with ThreadPoolExecutor(CLIENTS) as clients:
        bought = [
            clients.submit(
                buy, lab, user, own, order, "pm_card_chargeDeclined" if declined else "pm_card_visa"
            )
            for user, order, declined, own in wishes
        ]
        began = time.monotonic()
        kills = kill_now_and_then(
            lab,
            dice,
            lambda: all(each.done() for each in bought) and lab.rows(OPEN)[0]["n"] < count / 20,
        )
        accepted = [id for each in bought for id in each.result()]
    lab.gateway.clear_faults()
    settled = time.monotonic()
    while lab.rows(OPEN)[0]["n"] and time.monotonic() < settled + SETTLE_SECONDS:
        for process in lab.stack.processes.values():
            if not process.is_alive():
                process.launch()
        time.sleep(0.2)

    books = lab.rows(BOOKS)[0]
    captured = [entry["operation_id"] for entry in lab.gateway.journal("captured")]
    good = sum(not declined for _, _, declined, _ in wishes)
    tell(
        f"{len(accepted)} purchases of {count} orders, {kills} kills,"
        f" {time.monotonic() - began:.0f} s; {len(captured)} charges, {books}"
    )
    assert lab.rows(OPEN)[0]["n"] == 0
    assert lab.rows(UNEXPLAINED) == []
    assert len(captured) == len(set(captured)) == books["paid"] == books["captured"] == good
    assert books["ledger"] == good * PRICE_MINOR
    assert (books["undecided"], books["orders"], books["stock"]) == (0, count, 10 * count - good)
    assert by_verify(lab, accepted) == []
