"""A gateway of the tests' own, in this process, and what is asked of it."""

import threading

import pytest

from deploy.local.gateway import Gateway
from deploy.local.gateway_control import GatewayControl
from deploy.local.gateway_hooks import Hooks
from deploy.local.gateway_store import Store
from payments import gateway as adapter

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
