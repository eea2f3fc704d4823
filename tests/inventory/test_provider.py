"""What the provider's answers mean, sane and insane."""

import httpx
import pytest

from inventory.provider import fetch_snapshot
from tasks.retry import CallFailed
from tests.stand_ins import snapshot


class Asker:
    """Stands in for a run: all that a call may know of it."""

    operation_id = "0197a0e5-2c5f-7c4e-9c55-3a1f0f7e8f11"
    number = 3


def fetch():
    return fetch_snapshot(Asker(), user_id=7)


def body(**changes):
    fields = {"user_id": 7, "version": 1, "items": [{"sku": "sword", "quantity": 1}]}
    return httpx.Response(200, json=fields | changes)


class TestFetchSnapshot:
    def test_gives_what_the_user_owns(self, provider):
        provider.has(version=5, sword=1, potion=0)

        assert fetch() == {
            "user_id": 7,
            "version": 5,
            "items": [{"sku": "sword", "quantity": 1}, {"sku": "potion", "quantity": 0}],
        }

    def test_says_in_whose_name_it_asks(self, provider):
        provider.has(version=1)

        fetch()

        [asked] = provider.asked
        assert (asked.method, asked.url.path) == ("GET", "/v1/users/7/inventory")
        assert (asked.headers["X-Operation-ID"], asked.headers["X-Run"]) == (Asker.operation_id, "3")

    @pytest.mark.parametrize(
        ("status", "category"),
        [
            (400, "invalid_input"),
            (401, "dependency_unavailable"),
            (403, "dependency_unavailable"),
            (404, "not_found"),
            (409, "conflict"),
            (422, "invalid_input"),
            (429, "rate_limited"),
            (301, "dependency_unavailable"),
            (204, "dependency_unavailable"),
            (418, "dependency_unavailable"),
            (500, "dependency_unavailable"),
            (502, "dependency_unavailable"),
            (503, "dependency_unavailable"),
        ],
    )
    def test_gives_each_status_its_category(self, provider, status, category):
        provider.answers(httpx.Response(status, headers={"Location": "http://elsewhere/"}))

        with pytest.raises(CallFailed) as failed:
            fetch()

        assert failed.value.category == category
        assert len(provider.asked) == 1

    @pytest.mark.parametrize(
        ("error", "category"),
        [
            (httpx.ConnectTimeout("…"), "timeout"),
            (httpx.ReadTimeout("…"), "timeout"),
            (httpx.PoolTimeout("…"), "timeout"),
            (httpx.ConnectError("refused"), "dependency_unavailable"),
            (httpx.ReadError("reset"), "dependency_unavailable"),
            (httpx.RemoteProtocolError("half an answer"), "dependency_unavailable"),
        ],
    )
    def test_gives_each_broken_connection_its_category(self, provider, error, category):
        provider.answers(error)

        with pytest.raises(CallFailed) as failed:
            fetch()

        assert (failed.value.category, failed.value.dependency) == (category, "inventory-provider")

    def test_keeps_the_pause_that_it_was_asked_for(self, provider):
        provider.answers(httpx.Response(429, headers={"Retry-After": "7"}))

        with pytest.raises(CallFailed) as failed:
            fetch()

        assert failed.value.retry_after_seconds == 7

    @pytest.mark.parametrize(
        "answer",
        [
            pytest.param(httpx.Response(200, content=b""), id="nothing"),
            pytest.param(httpx.Response(200, content=b"<html>"), id="a page"),
            pytest.param(httpx.Response(200, content=b"\xff"), id="not text"),
            pytest.param(httpx.Response(200, json=[]), id="a list"),
            pytest.param(httpx.Response(200, json="text"), id="a text"),
            pytest.param(httpx.Response(200, json=None), id="null"),
            pytest.param(httpx.Response(200, json={}), id="no members"),
            pytest.param(body(user_id=8), id="another user"),
            pytest.param(body(version=0), id="version 0"),
            pytest.param(body(version=-1), id="a negative version"),
            pytest.param(body(version=2**53 + 1), id="a version beyond JSON"),
            pytest.param(body(version="x"), id="a version that is no number"),
            pytest.param(body(items=None), id="no items"),
            pytest.param(body(items=[{"sku": "sword", "quantity": -1}]), id="less than nothing"),
            pytest.param(body(items=[{"sku": "sword", "quantity": 2**31}]), id="more than fits"),
            pytest.param(body(items=[{"sku": "s" * 101, "quantity": 1}]), id="a name too long"),
            pytest.param(body(items=[{"sku": "", "quantity": 1}]), id="no name"),
            pytest.param(body(items=[{"sku": "a\0b", "quantity": 1}]), id="NUL"),
            pytest.param(
                httpx.Response(
                    200, content=rb'{"user_id":7,"version":1,"items":[{"sku":"\ud800","quantity":1}]}'
                ),
                id="half a surrogate pair",
            ),
        ],
    )
    def test_trusts_no_answer_that_is_not_a_snapshot_of_this_user(self, provider, answer):
        provider.answers(answer)

        with pytest.raises(CallFailed) as failed:
            fetch()

        assert failed.value.category == "dependency_unavailable"

    def test_refuses_an_answer_without_end(self, provider):
        many = {f"sku-{number}": 1 for number in range(50_000)}
        provider.has(1, **many)

        with pytest.raises(CallFailed, match="bytes"):
            fetch()

    def test_reads_what_its_stand_in_says(self):
        request = httpx.Request("GET", "http://provider/v1/users/7/inventory")

        assert snapshot(request, 1, {"sword": 1}).json() == {
            "user_id": 7,
            "version": 1,
            "items": [{"sku": "sword", "quantity": 1}],
        }
