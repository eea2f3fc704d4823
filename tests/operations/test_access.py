"""Who sees and changes what: every route, each method, for its owner, another, nobody, and an unknown id.

And what a body may set: nothing but what the job's payload declares.
"""

import json

import pytest
from django.urls import get_resolver

from inventory.models import InventoryItem
from operations import jobs
from operations.models import IdempotencyRecord, Operation, OperationData, Status
from operations.serializers import OperationView
from tests.factories import make_operation, make_user
from tests.operations.answers import described, is_problem, told

pytestmark = pytest.mark.django_db

METHODS = ("get", "head", "post", "put", "patch", "delete", "options")
UNKNOWN = "0197a0e5-2c5f-7c4e-9c55-3a1f0f7e8f11"
OF_AN_OPERATION = ("/v1/operations/{operation_id}", "/v1/operations/{operation_id}/cancel")
OF_A_USER = ("/v1/inventory", "/v1/inventory/sync", "/v1/operations", "/v1/purchases")
TO_ANYBODY = {"/v1/schema", "/v1/webhooks/stripe"}  # the second to who can sign, and so not described
# What a client may say of what it has seen. With a foreign id it must not be told whether it was right.
SEEN = [{}, {"If-None-Match": 'W/"1"'}, {"If-None-Match": "*"}, {"If-Match": 'W/"1"'}, {"Prefer": "wait=1"}]


def ask(client, method, path, operation_id=UNKNOWN, **headers):
    headers = {"X-Request-ID": "r-1", "Idempotency-Key": "k-1"} | headers
    return getattr(client, method)(path.format(operation_id=operation_id), headers=headers)


def rows():
    """Give every row that an answer could have come from, or have changed."""
    kinds = (Operation, OperationData, IdempotencyRecord)
    return [list(kind.objects.order_by("pk").values()) for kind in kinds]


class TestRoutes:
    def test_are_all_in_the_matrix(self, client):
        """A route that is new is to be put into one of the lists above."""
        known = {*OF_AN_OPERATION, *OF_A_USER}
        routed = {
            f"/{each.pattern}".replace("<uuid:operation_id>", "{operation_id}")
            for part in get_resolver().url_patterns
            for each in getattr(part, "url_patterns", [part])
        }

        assert described(client)["paths"].keys() == known
        assert {route for route in routed if route.startswith("/v1/")} == known | TO_ANYBODY


@pytest.mark.parametrize("path", OF_AN_OPERATION)
@pytest.mark.parametrize("method", METHODS)
class TestOperation:
    def test_of_another_is_answered_like_nothing(self, api, method, path):
        theirs = make_operation()
        before = rows()

        for seen in SEEN:
            anothers, nothing = (ask(api, method, path, each, **seen) for each in (theirs.id, UNKNOWN))
            assert told(anothers) == told(nothing), seen

        assert rows() == before

    def test_of_another_is_nothing_in_any_status(self, api, method, path):
        theirs = [make_operation(status=status) for status in Status.values]
        before = rows()

        nothing, *anothers = (ask(api, method, path, each) for each in (UNKNOWN, *(one.id for one in theirs)))

        assert all(told(answer) == told(nothing) for answer in anothers)
        assert nothing.status_code in (404, 405) or method == "options"
        assert rows() == before

    def test_is_nobodys(self, client, user, method, path):
        mine = make_operation(owner=user)
        before = rows()

        for wrong in ({}, {"Authorization": "Token nonsense"}):
            known, unknown = (ask(client, method, path, each, **wrong) for each in (mine.id, UNKNOWN))
            assert told(known) == told(unknown)
            assert known.status_code == 401

        assert rows() == before

    def test_is_its_owners(self, api, user, method, path):
        allowed = {"get", "head", "options"} if path == OF_AN_OPERATION[0] else {"post", "options"}

        answer = ask(api, method, path, make_operation(owner=user).id)

        assert answer.status_code == (200 if method in allowed else 405)


@pytest.mark.parametrize("path", OF_A_USER)
@pytest.mark.parametrize("method", METHODS)
class TestUser:
    def test_sees_and_changes_nothing_of_another(self, api, client_of, user, method, path):
        mine = make_operation(owner=user)
        InventoryItem.objects.create(user=user, sku="sword", quantity=1, version=1)
        before = Operation.objects.filter(owner=user).values().get()

        answer = ask(client_of(make_user()), method, path)

        assert str(mine.id).encode() not in answer.content
        assert b"sword" not in answer.content
        assert Operation.objects.filter(owner=user).values().get() == before

    def test_says_who_they_are(self, client, method, path):
        answer = ask(client, method, path)

        assert answer.status_code == 401
        assert rows() == [[], [], []]


COLUMNS = [field.attname for kind in (Operation, OperationData) for field in kind._meta.fields]
READ_ONLY = sorted({*OperationView().fields, *COLUMNS, "user_id"})
JOBS = [job for job in jobs.every() if job.route]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
class TestBody:
    def test_sets_nothing_of_an_operation(self, api, job):
        values = {"owner_id": make_user().pk, "user_id": make_user().pk, "status": "succeeded", "attempt": 7}

        for member in READ_ONLY:
            answer = self.post(api, job, {member: values.get(member, "x")})
            assert is_problem(answer, 400, "validation-error")
            assert [error["pointer"] for error in answer.json()["errors"]] == [f"#/{member}"]

        assert rows() == [[], [], []]

    def test_that_sets_all_of_it_hears_of_each(self, api, job):
        answer = self.post(api, job, dict.fromkeys(READ_ONLY, "x"))

        assert {error["pointer"] for error in answer.json()["errors"]} == {f"#/{each}" for each in READ_ONLY}
        assert rows() == [[], [], []]

    def post(self, api, job, body):
        return api.post(
            f"/v1/{job.route}",
            json.dumps(body),
            content_type="application/json",
            headers={"Idempotency-Key": "k-1"},
        )


class TestBodyOfACancel:
    def test_is_not_read(self, api, user):
        """What it says is no member of a request: the operation is cancelled as without it."""
        one, other = (make_operation(owner=user, correlation_id="c-1") for _ in range(2))
        body = dict.fromkeys(READ_ONLY, "x") | {"status": "succeeded", "owner_id": make_user().pk}

        api.post(f"/v1/operations/{one.id}/cancel", json.dumps(body), content_type="application/json")
        api.post(f"/v1/operations/{other.id}/cancel")

        changing = {"id", "created_at", "run_at", "deadline_at", "published_at", "finished_at"}
        changing |= {"cancel_requested_at", "version", "resource_seq"}
        kept = [
            {name: value for name, value in row.items() if name not in changing}
            for row in Operation.objects.values()
        ]
        assert kept[0] == kept[1]
        assert kept[0]["status"] == "ignored"
