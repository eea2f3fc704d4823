"""Events of the gateway: signed, stored once, answered at once, and in any order the same in the end."""

import itertools
import json
import time

import pytest
from django.test import Client

from deploy.local.gateway_hooks import signature
from operations.models import Operation
from payments import ledger
from payments.models import Drift, GatewayEvent, LedgerEntry, Order, Payment, Product
from tests.factories import work
from tests.payments.buying import PRICE, go_on, once

pytestmark = pytest.mark.django_db(transaction=True)

SECRETS = ["whsec_new", "whsec_old"]
PATH = "/v1/webhooks/stripe"


@pytest.fixture(autouse=True)
def secrets(settings):
    settings.STRIPE_WEBHOOK_SECRETS = SECRETS


def event(kind="payment_intent.succeeded", *, id="evt_1", intent="pi_1", **changes):
    thing = {"object": "payment_intent", "id": intent, "payment_method_details": {"card": {"last4": "4242"}}}
    return {"id": id, "type": kind, "created": int(time.time()), "data": {"object": thing}, **changes}


def post(body, *, secret=SECRETS[0], at=None, header=None):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    signed = signature(body, secret, at=at) if header is None else header
    return Client().post(PATH, body, content_type="application/json", headers={"Stripe-Signature": signed})


class TestPost:
    def test_is_stored_and_answered_at_once(self):
        answer = post(event())

        assert (answer.status_code, answer.content) == (200, b"")
        stored = GatewayEvent.objects.get()
        assert (stored.event_id, stored.type, stored.object_id) == (
            "evt_1",
            "payment_intent.succeeded",
            "pi_1",
        )
        looks = Operation.objects.get()
        assert (looks.job_type, looks.id, looks.source) == ("payments.event", stored.operation_id, "gateway")

    def test_is_stored_once(self):
        assert [post(event()).status_code for _ in range(3)] == [200] * 3
        assert (GatewayEvent.objects.count(), Operation.objects.count()) == (1, 1)

    def test_keeps_nothing_of_the_card(self):
        post(event())

        assert "4242" not in str(list(GatewayEvent.objects.values()))

    def test_takes_the_last_secret_while_they_are_changed(self):
        assert post(event(), secret=SECRETS[1]).status_code == 200

    @pytest.mark.parametrize(
        "how",
        [
            {"secret": "whsec_another"},
            {"at": time.time() - 400},
            {"header": ""},
            {"header": "t=1,v1=00"},
            {"header": "nonsense"},
        ],
    )
    def test_leaves_no_row_if_it_is_not_the_gateways(self, how):
        answer = post(event(), **how)

        assert answer.status_code == 400
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert not GatewayEvent.objects.exists()

    def test_signs_the_very_bytes(self):
        body = json.dumps(event()).encode()

        assert post(body + b" ", header=signature(body, SECRETS[0])).status_code == 400

    @pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"null", b'{"id": 1}', b"\xff\xfe", b"{" * 10_000])
    def test_refuses_what_is_no_event(self, body):
        assert post(body).status_code == 400
        assert not GatewayEvent.objects.exists()

    def test_refuses_what_is_too_large(self):
        assert post(b"x" * 300_000).status_code == 413

    def test_without_secrets_believes_nobody(self, settings):
        settings.STRIPE_WEBHOOK_SECRETS = []

        assert post(event(), secret="").status_code == 400

    def test_keeps_kinds_that_mean_nothing_to_us(self):
        post(event("customer.created"))

        stored = GatewayEvent.objects.get()
        assert stored.outcome.startswith("ignored")
        assert not Operation.objects.exists()

    def test_knows_no_other_method(self):
        assert Client().get(PATH).status_code == 405


def deliver(events):
    for told in events:
        assert post(told).status_code == 200
    for looking in Operation.objects.filter(job_type="payments.event", status="queued").order_by(
        "created_at"
    ):
        assert work(looking).status == "succeeded"


def state():
    return (
        list(Order.objects.values_list("number", "status")),
        sorted(Payment.objects.values_list("kind", "status", "amount_minor")),
        sorted(LedgerEntry.objects.values_list("kind", "amount_minor")),
        Product.objects.get().stock,
        Drift.objects.count(),
    )


class TestOrder:
    def test_of_arrival_makes_no_difference(self, buy, gateway):
        """Five events with a duplicate among them, in every order, while the purchase does not know yet."""
        kinds = ("created", "amount_capturable_updated", "succeeded", "succeeded", "requires_action")
        states = set()
        for number, order in enumerate(sorted(set(itertools.permutations(kinds)))):
            Product.objects.update(stock=5)
            gateway.fail(on="capture", drop=True)
            purchase = once(buy(f"o-{number}"))
            intent = Payment.objects.get(operation_id=purchase.id).gateway_id
            deliver(
                event(f"payment_intent.{kind}", id=f"evt_{number}_{kind}", intent=intent) for kind in order
            )
            purchase = go_on(purchase)
            paid = Order.objects.get(number=f"o-{number}")
            deliver(
                event(f"payment_intent.{kind}", id=f"evt_{number}_{kind}_late", intent=intent)
                for kind in order
            )
            paid.refresh_from_db()
            charge = Payment.objects.get(operation_id=purchase.id)
            states.add((purchase.status, paid.status, charge.status, Product.objects.get().stock))

        assert states == {("succeeded", "paid", "captured", 4)}
        assert set(ledger.balance().values()) == {PRICE * 60}
        assert not Drift.objects.exists()


class TestApply:
    def test_wakes_an_operation_that_does_not_know(self, buy, gateway):
        gateway.fail(on="capture", drop=True)
        purchase = once(buy())
        intent = Payment.objects.get().gateway_id
        before = Operation.objects.get(id=purchase.id).run_at

        deliver([event(intent=intent)])

        assert Operation.objects.get(id=purchase.id).run_at < before
        assert GatewayEvent.objects.get().outcome == "its operation looks again"

    def test_wakes_one_that_has_not_heard_of_its_intent(self, buy, gateway):
        gateway.fail(on="create", drop=True)
        purchase = once(buy())
        intent = gateway.journal("created", operation_id=str(purchase.id))[0]["intent"]

        deliver([event("payment_intent.created", intent=intent)])

        assert GatewayEvent.objects.get().outcome == "its operation looks again"

    def test_posts_what_went_back(self, buy, gateway):
        purchase = go_on(buy())
        charge = Payment.objects.get()
        refund(gateway, charge.gateway_id, 200)
        deliver([event("charge.refunded", id="evt_a", intent=charge.gateway_id)])
        assert (Order.objects.get().status, ledger.balance()) == ("paid", {"EUR": PRICE - 200})

        refund(gateway, charge.gateway_id, PRICE - 200)
        deliver([event("charge.refunded", id=f"evt_{n}", intent=charge.gateway_id) for n in range(3)])

        assert (Order.objects.get().status, ledger.balance()) == ("refunded", {"EUR": 0})
        assert sorted(LedgerEntry.objects.values_list("kind", "amount_minor")) == [
            ("capture", PRICE),
            ("refund", 200),
            ("refund", PRICE - 200),
        ]
        assert purchase.status == "succeeded"

    def test_finds_a_charge_that_we_take_for_failed(self, buy, gateway):
        go_on(buy())
        Payment.objects.update(status="failed")

        deliver([event(intent=Payment.objects.get().gateway_id)])

        assert Drift.objects.get().kind == "charged_though_failed"

    def test_of_nobodys_intent_changes_nothing(self, gateway, lamp):
        intent = gateway.charge(amount="700", currency="eur")["id"]

        deliver([event(intent=intent)])

        assert GatewayEvent.objects.get().outcome == "not ours"


def refund(gateway, intent, amount):
    """Give money back at the gateway's own desk."""
    gateway.refund(payment_intent=intent, amount=str(amount))
