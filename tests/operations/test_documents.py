"""The OpenAPI description is whole: every status, header and problem of every operation, with examples."""

import re

import pytest

from operations import jobs, keys, problems
from operations.documents import BY_NAME
from tests.operations.answers import PROBLEM, described

OF_ANY = "400 401 405 406 429 500 503"
OPERATIONS = {
    "inventory_sync": ("200 202 409 411 412 413 415 422", {"Idempotency-Key", "If-Match"}),
    "payments_purchase": ("200 202 409 411 412 413 415 422", {"Idempotency-Key", "If-Match"}),
    "get_inventory": ("200 304", {"If-None-Match"}),
    "list_operations": ("200", {"job_type", "status", "created_after", "cursor", "limit"}),
    "get_operation": ("200 304 404", {"operation_id", "If-None-Match", "Prefer"}),
    "cancel_operation": ("200 202 404 409 412", {"operation_id", "If-Match"}),
}
REQUIRED = {
    "202": {"Location", "Retry-After"},
    "304": {"ETag", "Cache-Control", "Vary"},
    "401": {"WWW-Authenticate"},
    "405": {"Allow"},
    "415": {"Accept-Post"},
    "422": {"Link"},
    "429": {"Retry-After"},
    "503": {"Retry-After"},
}


@pytest.fixture
def operations(client):
    """Give every operation that is described, by its name."""
    return {
        operation["operationId"]: operation
        for path in described(client)["paths"].values()
        for operation in path.values()
    }


class TestComplete:
    def test_knows_every_operation(self, operations):
        assert operations.keys() == OPERATIONS.keys()

    @pytest.mark.parametrize("name", OPERATIONS)
    def test_tells_all_that_may_be_asked_and_answered(self, operations, name):
        statuses, parameters = OPERATIONS[name]

        operation = operations[name]

        assert set(operation["responses"]) == {*statuses.split(), *OF_ANY.split()}
        assert {each["name"] for each in operation.get("parameters", [])} == parameters
        assert operation["summary"]

    @pytest.mark.parametrize("name", OPERATIONS)
    def test_explains_every_answer_and_its_headers(self, operations, name):
        for status, answer in operations[name]["responses"].items():
            required = {header for header, told in answer["headers"].items() if told.get("required")}
            assert answer["description"]
            assert required >= {"X-Request-ID", *REQUIRED.get(status, set())}
            assert {"RateLimit", "RateLimit-Policy"} <= answer["headers"].keys()

    @pytest.mark.parametrize("name", OPERATIONS)
    def test_gives_an_example_of_each_problem(self, operations, name):
        for status, answer in operations[name]["responses"].items():
            if status < "400":
                assert PROBLEM not in answer.get("content", {})
                continue
            content = answer["content"][PROBLEM]
            types = content["schema"]["allOf"][1]["properties"]["type"]["enum"]
            examples = {each["value"]["type"] for each in content["examples"].values()}
            assert set(types) == examples
            assert all(each["value"]["status"] == int(status) for each in content["examples"].values())
            assert all(f"({each})" in answer["description"] for each in types), "it links to each"

    def test_leaves_no_problem_out(self, operations):
        """Nobody needs a permission for anything yet."""
        told = {
            name
            for operation in operations.values()
            for status, answer in operation["responses"].items()
            if status >= "400"
            for name in answer["content"][PROBLEM]["examples"]
        }

        assert told == BY_NAME.keys() - {"not-allowed"}
        assert BY_NAME.keys() == {each.name for each in [*problems.PROBLEMS.values(), problems.INTERNAL]}

    def test_has_no_default_answer(self, operations):
        assert not [name for name, each in operations.items() if "default" in each["responses"]]


class TestPayload:
    def test_has_no_owner_and_no_member_that_is_not_declared(self, client):
        sent = described(client)["components"]["schemas"]["SyncRequest"]

        assert (sent["properties"], sent["additionalProperties"]) == ({}, False)
        assert "required" not in sent

    def test_is_that_of_a_job_with_a_route(self, client):
        routes = {job.route: job.purpose for job in jobs.every() if job.route}

        paths = described(client)["paths"]

        assert {route: paths[f"/v1/{route}"]["post"]["summary"] for route in routes} == routes


class TestKey:
    @pytest.mark.parametrize("key", ["k-1", "a" * 255, '"a b"', '"' + "a" * 255 + '"', r'"\""'])
    def test_is_described_as_it_is_read(self, key):
        assert re.fullmatch(keys.PATTERN, key)
        assert keys.parse_key(key)

    @pytest.mark.parametrize("key", ["", '""', "a b", "a" * 256, '"' + "a" * 256 + '"', '"\\"', "é", '"é"'])
    def test_is_described_as_it_is_refused(self, key):
        assert not re.fullmatch(keys.PATTERN, key)
        with pytest.raises(keys.KeyInvalid):
            keys.parse_key(key)
