"""Reads of what is cached, on the real web: many at once of what is not there, and a cache that hangs."""

import re
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.faults.lab import RELAY_PERIOD_SECONDS

pytestmark = [pytest.mark.process, pytest.mark.embedded]

READERS = 50
HANGS_SECONDS = 6.0


@pytest.fixture(scope="module")
def lab(new_lab):
    return new_lab("provider", "web", "worker-inventory", "relay", env={"WEB_THREADS": "30"})


def leaders(lab):
    """Count how often the inventory was rebuilt, in all web processes."""
    headers = {"Authorization": f"Bearer {lab.stack.env['METRICS_TOKEN']}"}
    shown = httpx.get(f"{lab.stack.api_url}/metrics", headers=headers, trust_env=False).text
    found = re.findall(r'ops_cache_singleflight_total{cache="inventory:view",role="leader"} (\S+)', shown)
    return sum(map(float, found))


def read(user):
    with httpx.Client(headers=user.client.headers, base_url=user.client.base_url, trust_env=False) as client:
        return client.get("/v1/inventory", timeout=20)


class TestStampede:
    """C22, part 1."""

    def test_of_many_on_what_is_not_cached_loads_it_once(self, lab):
        user, before = lab.new_user(), leaders(lab)
        held, loaded = threading.Event(), threading.Event()

        def hold_the_table():
            """Let whoever loads wait a second."""
            with lab.database.transaction():
                lab.database.execute("LOCK TABLE inventory_inventoryitem IN ACCESS EXCLUSIVE MODE")
                held.set()
                loaded.wait(1)

        with ThreadPoolExecutor(READERS + 1) as threads:
            holding = threads.submit(hold_the_table)
            held.wait(5)
            answers = list(threads.map(lambda number: read(user), range(READERS)))
            holding.result()

        assert {answer.status_code for answer in answers} == {200}
        assert leaders(lab) - before == 1


class TestHang:
    """C23, part 1, and C21, part 1."""

    def test_of_the_cache_is_waited_for_a_few_times_only(self, lab):
        user = lab.new_user()
        lab.set_items(user, 1, sword=1)
        lab.wait_final(user.ask("inventory/sync"))
        assert read(user).json()["version"] == 1
        took = []
        with lab.broker as broker:
            broker.execute_command("CLIENT", "PAUSE", str(int(HANGS_SECONDS * 1_000)), "ALL")
        until = time.monotonic() + HANGS_SECONDS - 1
        while time.monotonic() < until or len(took) < 15:
            began = time.monotonic()
            answer = read(user)
            took.append(time.monotonic() - began)
            assert answer.json() == {"version": 1, "items": [{"sku": "sword", "quantity": 1}]}

        # Each of two processes finds out for itself, and looks now and then whether it is over.
        assert statistics.quantiles(took[10:], n=20)[-1] < 1.2, took

    def test_that_is_over_shows_nothing_that_was_missed(self, lab):
        user = lab.new_user()
        for version in (1, 2):
            lab.set_items(user, version, sword=version)
            lab.wait_final(user.ask("inventory/sync"))
            time.sleep(2 * RELAY_PERIOD_SECONDS + 0.5)
            assert read(user).json()["version"] == version
