"""Every answer of the API: its status, its headers, and a body that a program can read."""

import dataclasses
import json
import uuid

import pytest
from django.contrib.auth.models import Permission
from django.db import OperationalError, connection
from django.test import RequestFactory
from django.urls import resolve
from django.utils import timezone
from rest_framework import serializers
from rest_framework.test import APIRequestFactory, force_authenticate

from config import wsgi
from operations import accept, api, keys
from operations.api import view_of
from operations.authentication import RememberedTokenAuthentication
from operations.jobs import Payload
from operations.models import IdempotencyRecord, Operation, ResourceFence, Status
from tests.factories import make_job, make_request, make_user
from tests.operations.answers import is_problem

pytestmark = pytest.mark.django_db

SYNC = "/v1/inventory/sync"


@pytest.fixture
def sync(api):
    """Give a function that POSTs one sync request as `user`: right in all, but for what a test changes."""

    def post(body="{}", *, key="k-1", content_type="application/json", client=api, path=SYNC, **headers):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if key is not None:
            named["Idempotency-Key"] = key
        return client.post(path, body, content_type=content_type, headers=named)

    return post


def nothing_was_accepted():
    return not Operation.objects.exists() and not IdempotencyRecord.objects.exists()


def make_fingerprint(body):
    return keys.fingerprint(
        method="POST",
        path=SYNC,
        job_type="inventory.sync",
        media_type="application/json",
        body=json.loads(body),
    )


class TestPost:
    def test_accepts(self, sync):
        response = sync()

        operation = Operation.objects.get()
        assert response.status_code == 202
        assert response["Location"] == f"/v1/operations/{operation.id}"
        assert (response["Retry-After"], response["Idempotency-Key"]) == ("2", "k-1")
        assert "Idempotent-Replayed" not in response
        assert response.json() == {
            "operation_id": str(operation.id),
            "job_type": "inventory.sync",
            "status": "queued",
            "reason": "accepted",
            "status_url": f"/v1/operations/{operation.id}",
            "created_at": operation.created_at.isoformat().replace("+00:00", "Z"),
            "attempt": 0,
            "max_attempts": 5,
            "run_at": operation.run_at.isoformat().replace("+00:00", "Z"),
            "waiting_for": "a worker",
            "result": None,
            "error": None,
        }

    def test_stores_whose_request_it_was(self, sync, user):
        sync(X_Request_ID="r-1", X_Correlation_ID="c-1")

        operation = Operation.objects.get()
        assert operation.owner == user
        assert operation.data.payload == {"user_id": user.pk}
        assert (operation.request_id, operation.correlation_id) == ("r-1", "c-1")

    def test_takes_a_key_in_quotes_for_the_same(self, sync):
        first, again = sync(key="abc"), sync(key='"abc"')

        assert again.json()["operation_id"] == first.json()["operation_id"]

    @pytest.mark.parametrize(
        ("status", "answer"),
        [
            (Status.QUEUED, 202),
            (Status.PROCESSING, 202),
            (Status.RETRY_SCHEDULED, 202),
            (Status.SUCCEEDED, 200),
            (Status.FAILED_PERMANENT, 200),
            (Status.IGNORED, 200),
        ],
    )
    def test_repeats_with_the_operation_as_it_stands(self, sync, status, answer):
        first = sync()
        over, held = status in ("succeeded", "failed_permanent", "ignored"), status == "processing"
        Operation.objects.update(
            status=status,
            finished_at=timezone.now() if over else None,
            claim_token=uuid.uuid4() if held else None,
            lease_expires_at=timezone.now() if held else None,
        )

        again = sync()

        assert (again.status_code, again["Idempotent-Replayed"]) == (answer, "true")
        assert again.json()["operation_id"] == first.json()["operation_id"]
        assert again.json()["status"] == status
        assert ("Retry-After" in again) is not over
        assert Operation.objects.count() == 1

    def test_repeats_whatever_the_order_of_members_and_spaces(self, sync):
        sync("{}")

        assert sync(" { } ")["Idempotent-Replayed"] == "true"

    def test_repeats_what_todays_rules_would_refuse(self, sync, user):
        first = sync()
        IdempotencyRecord.objects.update(
            request_hash=make_fingerprint('{"colour": "red"}'),
        )

        again = sync('{"colour": "red"}')

        assert (again.status_code, again.json()["operation_id"]) == (202, first.json()["operation_id"])

    def test_accepts_from_another_user_under_the_same_key(self, sync, client_of):
        mine, theirs = sync(), sync(client=client_of(make_user()))

        assert (mine.status_code, theirs.status_code) == (202, 202)
        assert mine.json()["operation_id"] != theirs.json()["operation_id"]

    def test_accepts_a_request_without_a_body(self, api):
        response = api.generic("POST", SYNC, headers={"Idempotency-Key": "k-1"})

        assert response.status_code == 202

    def test_refuses_another_body_under_the_same_key(self, sync):
        sync()

        response = sync('{"colour": "red"}')

        assert is_problem(response, 422, "idempotency-key-reused")
        assert 'rel="describedby"' in response["Link"]
        assert Operation.objects.count() == 1

    def test_refuses_a_request_without_a_key(self, sync):
        response = sync(key=None)

        assert is_problem(response, 400, "idempotency-key-missing")
        assert 'rel="describedby"' in response["Link"]
        assert nothing_was_accepted()

    @pytest.mark.parametrize("key", ["", "a b", '"a","b"', "a" * 256, '"open', "é"])
    def test_refuses_a_malformed_key(self, sync, key):
        response = sync(key=key)

        assert is_problem(response, 400, "idempotency-key-invalid")
        assert 'rel="describedby"' in response["Link"]

    @pytest.mark.parametrize("body", ["{", "[]", '"text"', "null", '{"a": 1, "a": 2}', '{"a": NaN}'])
    def test_refuses_what_is_not_a_json_object(self, sync, body):
        assert is_problem(sync(body), 400, "malformed-body")
        assert nothing_was_accepted()

    def test_points_to_each_member_that_is_not_valid(self, sync):
        response = sync('{"colour": "red", "a/b~c": 1}')

        assert is_problem(response, 400, "validation-error")
        pointers = {error["pointer"] for error in response.json()["errors"]}
        assert pointers == {"#/colour", "#/a~1b~0c"}  # RFC 6901 section 3

    def test_refuses_the_id_of_an_owner_from_a_body(self, sync):
        assert is_problem(sync('{"user_id": 1}'), 400, "validation-error")

    def test_does_not_use_a_key_up_that_it_refused(self, sync):
        sync('{"colour": "red"}')

        assert sync().status_code == 202

    @pytest.mark.parametrize("credentials", ["", "Token nonsense", "Bearer x", "Token"])
    def test_refuses_who_does_not_say_who_they_are(self, sync, credentials):
        response = sync(Authorization=credentials)

        assert is_problem(response, 401, "not-authenticated")
        assert response["WWW-Authenticate"] == "Token"
        assert nothing_was_accepted()

    def test_refuses_a_user_who_was_shut_out(self, sync, user):
        user.is_active = False
        user.save()

        assert is_problem(sync(), 401, "not-authenticated")

    @pytest.mark.parametrize("path", ["/v1/inventory/synchronise", "/v1/", "/v2/inventory/sync"])
    def test_knows_no_other_address(self, sync, path):
        assert is_problem(sync(path=path), 404, "not-found")

    @pytest.mark.parametrize("host", ["", "elsewhere.example", "a b", "-1"])
    def test_answers_to_no_other_host(self, sync, host):
        assert is_problem(sync(Host=host), 400, "bad-request")
        assert nothing_was_accepted()

    @pytest.mark.parametrize("method", ["get", "put", "patch", "delete"])
    def test_knows_no_other_method(self, api, method):
        response = getattr(api, method)(SYNC, headers={"Idempotency-Key": "k-1"})

        assert is_problem(response, 405, "method-not-allowed")
        assert response["Allow"] == "POST, OPTIONS"

    def test_speaks_json_only(self, sync):
        assert is_problem(sync(Accept="text/html"), 406, "not-acceptable")

    def test_refuses_a_body_that_is_too_large(self, sync, settings):
        body = '{"a": "' + "x" * settings.DATA_UPLOAD_MAX_MEMORY_SIZE + '"}'

        assert is_problem(sync(body), 413, "body-too-large")

    @pytest.mark.parametrize(
        "media_type", ["text/plain", "application/xml", "multipart/form-data; boundary=x"]
    )
    def test_refuses_another_media_type(self, sync, media_type):
        response = sync("{}", content_type=media_type)

        assert is_problem(response, 415, "unsupported-media-type")
        assert response["Accept-Post"] == "application/json"

    def test_refuses_json_in_another_charset(self, sync):
        response = sync(content_type="application/json; charset=latin-1")

        assert is_problem(response, 415, "unsupported-media-type")
        assert "UTF-8" in response.json()["detail"]

    def test_refuses_a_body_that_is_packed(self, sync):
        assert is_problem(sync(Content_Encoding="gzip"), 415, "unsupported-media-type")

    def test_refuses_a_body_whose_size_is_not_stated(self, sync):
        """Django reads nothing of a body in chunks, and nothing may be what was asked for."""
        assert is_problem(sync(Transfer_Encoding="chunked"), 411, "length-missing")

    def test_reads_json_in_utf_8_by_any_name(self, sync):
        assert sync(content_type="application/json; charset=utf-8").status_code == 202


class TestNames:
    """One thing has one name, however a client spells it."""

    class Note(Payload):
        """What the request names."""

        ref = serializers.CharField()

    @pytest.fixture
    def post(self, user):
        view = view_of(make_job(name="tests.named", payload=self.Note, resource="tests:{ref}"))

        def post(ref, key):
            request = APIRequestFactory().post(
                "/v1/named", {"ref": ref}, format="json", headers={"Idempotency-Key": key}
            )
            request.id = "r-1"
            force_authenticate(request, user)
            return view(request)

        return post

    def test_are_made_of_what_the_job_sees(self, post):
        assert [post("abc", "k-1").status_code, post("  abc ", "k-2").status_code] == [202, 202]

        assert set(Operation.objects.values_list("resource", flat=True)) == {"tests:abc"}

    def test_that_are_too_long_are_not_valid(self, post):
        assert post("x" * 195, "k-1").status_code == 400
        assert nothing_was_accepted()


class TestPostWithSeenVersion:
    @pytest.fixture(autouse=True)
    def at_version_5(self, user):
        ResourceFence.objects.create(resource=f"inventory:user:{user.pk}", applied_version=5)

    @pytest.mark.parametrize("seen", ['"5"', "*", " * "])
    def test_accepts(self, sync, seen):
        assert sync(If_Match=seen).status_code == 202

    @pytest.mark.parametrize("seen", ['"4"', '"6"', '"0"', 'W/"5"', '""', "x" * 10_000])
    def test_refuses(self, sync, seen):
        assert is_problem(sync(If_Match=seen), 412, "version-moved")
        assert nothing_was_accepted()

    def test_never_refuses_a_repeat(self, sync):
        sync(If_Match='"5"')
        ResourceFence.objects.update(applied_version=6)

        assert sync(If_Match='"5"').status_code == 202


class TestStrange:
    def test_a_content_type_that_django_cannot_read_is_none(self):
        strange = "application/json; charset*=foo'en'x%20y"
        request = wsgi.Request(RequestFactory()._base_environ(CONTENT_TYPE=strange))

        assert (request.content_type, request.content_params) == ("", {})

    def test_a_database_that_takes_no_writes_is_away(self, sync):
        with connection.cursor() as cursor:
            cursor.execute("SET transaction_read_only = on")

        assert is_problem(sync(), 503, "temporarily-unavailable")


class TestOrderOfChecks:
    """A request that is wrong in several ways hears of the first of them in this order."""

    WRONG = (
        (413, "body-too-large", {"body": "{" + "x" * 70_000}),
        (401, "not-authenticated", {"Authorization": "Token nonsense"}),
        (415, "unsupported-media-type", {"content_type": "text/plain"}),
        (400, "idempotency-key-invalid", {"key": "a b"}),
        (400, "malformed-body", {"body": "{"}),
    )

    @pytest.mark.parametrize("first", range(len(WRONG)))
    def test_is_fixed(self, sync, first):
        status, name, wrong = self.WRONG[first]
        for _, _, also_wrong in self.WRONG[first + 1 :]:
            wrong = also_wrong | wrong

        assert is_problem(sync(**wrong), status, name)

    def test_asks_who_may_before_it_tells_of_a_repeat(self, sync, user, monkeypatch):
        """C16: one who has lost the permission hears no more than one who never had it."""
        view = resolve(SYNC).func.cls
        needed = dataclasses.replace(view.job, permission="inventory.add_inventoryitem")
        monkeypatch.setattr(view, "job", needed)
        user.user_permissions.add(Permission.objects.get(codename="add_inventoryitem"))
        first = sync()
        user.user_permissions.clear()
        RememberedTokenAuthentication._seen.clear()

        assert first.status_code == 202
        assert is_problem(sync(), 403, "not-allowed")
        assert is_problem(sync(key=None), 403, "not-allowed")
        assert is_problem(sync(content_type="text/plain"), 415, "unsupported-media-type")

    def test_looks_the_key_up_before_it_validates(self, sync):
        sync()

        assert is_problem(sync('{"not": "valid"}'), 422, "idempotency-key-reused")


@pytest.mark.django_db(transaction=True)
class TestPostInTrouble:
    def test_accepts_without_the_broker(self, sync, broker_away):
        response = sync()

        assert response.status_code == 202
        assert Operation.objects.get().published_at is None

    def test_asks_to_come_back_while_the_first_is_uncommitted(self, sync, user, first_uncommitted):
        with first_uncommitted(make_request(user)):
            response = sync()

        assert is_problem(response, 409, "request-in-progress")
        assert response["Retry-After"] == "1"
        assert Operation.objects.count() == 1

    def test_keeps_what_was_accepted_when_the_answer_fails(self, sync, monkeypatch, client):
        """No request is one transaction: what rises after the acceptance takes nothing back."""

        def fail(*arguments):
            raise RuntimeError("after the acceptance")

        client.raise_request_exception = False
        monkeypatch.setattr(api, "_accepted", fail)
        failed = sync()
        monkeypatch.undo()
        again = sync()

        assert failed.status_code == 500
        assert again["Idempotent-Replayed"] == "true"
        assert Operation.objects.count() == 1

    def test_says_that_the_database_is_away(self, sync, monkeypatch):
        monkeypatch.setitem(connection.settings_dict, "HOST", "/nowhere")
        connection.close()
        response = sync()
        monkeypatch.undo()

        assert is_problem(response, 503, "temporarily-unavailable")
        assert 2 <= int(response["Retry-After"]) <= 6
        assert "may or may not have been accepted" in response.json()["detail"]
        assert nothing_was_accepted()

    def test_does_not_deny_what_it_has_accepted_when_the_database_goes_away(self, sync, monkeypatch):
        """It is committed, the answer is lost, and there is nobody to ask what became of it."""
        insert = accept._insert_once

        def commit_and_lose_the_database(*request):
            insert(*request)
            monkeypatch.setitem(connection.settings_dict, "HOST", "/nowhere")
            connection.close()
            raise OperationalError("server closed the connection unexpectedly")

        monkeypatch.setattr(accept, "_insert_once", commit_and_lose_the_database)
        response = sync()
        monkeypatch.undo()

        assert is_problem(response, 503, "temporarily-unavailable")
        assert "send it again with the same key" in response.json()["detail"]
        again = sync()
        assert (again.status_code, again["Idempotent-Replayed"]) == (202, "true")
        assert Operation.objects.count() == 1

    def test_says_nothing_of_accepting_to_one_who_reads(self, api, monkeypatch):
        monkeypatch.setitem(connection.settings_dict, "HOST", "/nowhere")
        connection.close()
        response = api.get(f"/v1/operations/{uuid.uuid4()}")
        monkeypatch.undo()

        assert is_problem(response, 503, "temporarily-unavailable")
        assert response.json()["detail"] == "the database does not answer; ask again"

    def test_tells_nothing_of_an_error_that_nobody_foresaw(self, sync, settings):
        settings.CRASHPOINTS = {"accept.before_insert": "raise"}
        response = sync()
        settings.CRASHPOINTS = {}

        assert is_problem(response, 500, "internal")
        assert "crash" not in response.content.decode().lower()
        assert nothing_was_accepted()
        assert sync().status_code == 202
