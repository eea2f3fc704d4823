"""A gateway of the tests' own, in this process, and what is asked of it."""

import threading

import pytest

from deploy.local.gateway import Gateway
from deploy.local.gateway_control import GatewayControl
from deploy.local.gateway_hooks import Hooks
from deploy.local.gateway_store import Store
from operations import jobs
from operations.models import Transition
from payments import gateway as adapter
from payments.models import Product
from tests.factories import make_operation, make_user
from tests.payments.buying import PRICE

API_KEY = "sk_test_of_the_tests"


@pytest.fixture(scope="session")
def gateway_server(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("gateway") / "gateway.sqlite")
    hooks = Hooks(store, "", "whsec_of_the_tests")
    with Gateway(store, api_key=API_KEY, hooks=hooks) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def gateway(gateway_server, settings):
    """Give the hand on the switches of the gateway that the product's code talks to."""
    settings.STRIPE_API_KEY, settings.STRIPE_API_BASE = API_KEY, gateway_server.url
    settings.STRIPE_HOSTS, settings.STRIPE_TIMEOUT_SECONDS = ["127.0.0.1"], 1.0
    adapter.hang_up()
    control = GatewayControl(gateway_server.url)
    yield control
    control.clear_faults()
    control.hooks(held=False)
    control.close()
    adapter.hang_up()


@pytest.fixture(autouse=True)
def no_breaker(settings):
    """Let no breaker open: what fails here fails on purpose."""
    settings.BREAKER_FAILURES = 1_000


@pytest.fixture
def lamp(db):
    return Product.objects.create(sku="lamp", name="Lamp", price_minor=PRICE, currency="EUR", stock=5)


@pytest.fixture
def customer(db):
    return make_user("ana")


@pytest.fixture
def buy(customer, lamp, gateway):
    """Give a function that accepts a purchase of one lamp."""

    def accepted(order_id="o-1", *, owner=None, method="pm_card_visa", **changes):
        owner = customer if owner is None else owner
        payload = {
            "order_id": order_id,
            "sku": "lamp",
            "quantity": 1,
            "amount_minor": PRICE,
            "currency": "EUR",
            "payment_method": method,
            "user_id": owner.pk,
            **changes,
        }
        operation = make_operation(
            job=jobs.get("payments.purchase"),
            owner=owner,
            payload=payload,
            resource=f"payments:order:{owner.pk}:{order_id}",
        )
        Transition.objects.create(
            operation=operation,
            to_status="queued",
            reason="accepted",
            run=0,
            attempt=0,
            at=operation.created_at,
        )
        return operation

    return accepted
