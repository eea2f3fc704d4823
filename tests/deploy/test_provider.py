import threading
from contextlib import contextmanager

import httpx
import pytest

from deploy.local.provider import Provider
from deploy.local.provider_control import ProviderControl
from deploy.local.provider_store import Fault, Store

HEADERS = {"X-Operation-ID": "op-1", "X-Run": "2"}


@contextmanager
def running(directory):
    with Provider(Store(directory / "provider.sqlite")) as provider:
        thread = threading.Thread(target=provider.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        control = ProviderControl(provider.url)
        yield control
        control.close()
        provider.shutdown()
        thread.join()


@pytest.fixture
def provider(tmp_path):
    with running(tmp_path) as control:
        yield control


def ask(provider, user_id=7, timeout=5):
    url = f"{provider.base_url}/v1/users/{user_id}/inventory"
    return httpx.get(url, headers=HEADERS, timeout=timeout)


class TestInventory:
    def test_is_what_was_set(self, provider):
        provider.set_snapshot(7, version=12, items={"sword": 1})

        assert ask(provider).json() == {
            "user_id": 7,
            "version": 12,
            "items": [{"sku": "sword", "quantity": 1}],
        }

    def test_of_a_stranger_is_not_found(self, provider):
        assert ask(provider).status_code == 404


class TestFault:
    def test_answers_with_a_status_and_when_to_come_back(self, provider):
        provider.fail(Fault(status=429, retry_after="3", body="slow down"))

        answer = ask(provider)

        assert (answer.status_code, answer.headers["Retry-After"], answer.text) == (429, "3", "slow down")

    def test_clears_itself(self, provider):
        provider.set_snapshot(7, version=1, items={})
        provider.fail(Fault(status=503, times=2))

        assert [ask(provider).status_code for _ in range(3)] == [503, 503, 200]

    def test_of_a_user_spares_others_and_goes_first(self, provider):
        provider.fail(Fault(status=500))
        provider.fail(Fault(status=503, user_id=7))

        assert (ask(provider, 7).status_code, ask(provider, 8).status_code) == (503, 500)

    def test_drops_the_connection(self, provider):
        provider.fail(Fault(drop=True))

        with pytest.raises(httpx.RemoteProtocolError):
            ask(provider)

    def test_delays_what_was_true_at_arrival(self, provider):
        provider.set_snapshot(7, version=1, items={})
        provider.fail(Fault(delay_seconds=0.3))
        answers = []
        slow = threading.Thread(target=lambda: answers.append(ask(provider).json()))
        slow.start()
        while not provider.journal():
            pass

        provider.set_snapshot(7, version=2, items={})
        slow.join()

        assert answers[0]["version"] == 1

    def test_ends_when_it_is_cleared(self, provider):
        provider.set_snapshot(7, version=1, items={})
        provider.fail(Fault(status=503))

        provider.clear_faults()

        assert ask(provider).status_code == 200


class TestJournal:
    def test_has_every_request_with_its_answer(self, provider):
        provider.fail(Fault(drop=True, times=1))
        with pytest.raises(httpx.RemoteProtocolError):
            ask(provider)
        ask(provider)

        first, second = provider.journal()

        assert (first["operation_id"], first["run"], first["user_id"]) == ("op-1", "2", 7)
        assert (first["answer"], second["answer"]) == ("dropped", "404")
        assert first["arrived_at"] <= second["arrived_at"] <= second["answered_at"]

    def test_can_be_asked_about_one_operation_or_user(self, provider):
        ask(provider, 7)

        assert provider.journal(user_id=8) == []
        assert provider.journal(operation_id="another") == []
        assert len(provider.journal(user_id=7, operation_id="op-1")) == 1

    def test_outlives_the_process(self, tmp_path):
        with running(tmp_path) as provider:
            provider.set_snapshot(7, version=3, items={})
            ask(provider)

        with running(tmp_path) as provider:
            assert len(provider.journal()) == 1
            assert ask(provider).json()["version"] == 3
