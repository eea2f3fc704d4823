"""How each case of docs/answers.md is brought about."""

import dataclasses
import uuid

import pytest
from django.db import connection
from django.urls import resolve
from django.utils import timezone

from operations.models import Operation
from tests.factories import HOUR, make_operation, make_request
from tests.operations.answers import told

ADDRESS = "/v1/inventory/sync"
RIGHT = {"Idempotency-Key": "k-1"}
THREADS = {"wsgi.multithread": True}


class Cases:
    """Each method is a case: it asks as `user`, and gives the answer."""

    def __init__(self, request):
        self._fixture = request.getfixturevalue
        self.user, self.api = self._fixture("user"), self._fixture("api")

    def post(self, body="{}", media_type="application/json", **headers):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.api.post(ADDRESS, body, content_type=media_type, headers=RIGHT | named)

    def get(self, operation, **headers):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.api.get(f"/v1/operations/{operation.id}", headers=named, **THREADS)

    def cancel(self, **columns):
        return self.api.post(f"/v1/operations/{make_operation(owner=self.user, **columns).id}/cancel")

    def accepted(self):
        return self.post()

    def repeated(self):
        self.post()
        return self.post()

    def repeated_when_over(self):
        self.post()
        Operation.objects.update(status="succeeded", finished_at=timezone.now())
        return self.post()

    def reused(self):
        self.post()
        return self.post('{"colour": "red"}')

    def in_progress(self):
        with self._fixture("first_uncommitted")(make_request(self.user)):
            return self.post()

    def without_key(self):
        return self.api.post(ADDRESS, "{}", content_type="application/json")

    def bad_key(self):
        return self.post(Idempotency_Key="a b")

    def no_json(self):
        return self.post("{")

    def not_valid(self):
        return self.post('{"colour": "red"}')

    def other_host(self):
        return self.post(Host="elsewhere.example")

    def nobody(self):
        return self.post(Authorization="")

    def not_allowed(self):
        view = resolve(ADDRESS).func.cls
        needed = dataclasses.replace(view.job, permission="inventory.add_inventoryitem")
        self._fixture("monkeypatch").setattr(view, "job", needed)
        return self.post()

    def nowhere(self):
        return self.api.post("/v1/inventory/synchronise", headers=RIGHT)

    def wrong_method(self):
        return self.api.put(ADDRESS, headers=RIGHT)

    def html_wanted(self):
        return self.post(Accept="text/html")

    def too_large(self):
        return self.post('{"a": "' + "x" * self._fixture("settings").DATA_UPLOAD_MAX_MEMORY_SIZE + '"}')

    def no_size(self):
        return self.post(Transfer_Encoding="chunked")

    def other_media(self):
        return self.post(media_type="text/plain")

    def over_quota(self):
        self._fixture("settings").POSTS_PER_MINUTE = 1
        self.post()
        return self.post()

    def closed(self):
        make_operation(run_at=timezone.now() - HOUR)
        return self.post()

    def broker_down(self):
        self._fixture("broker_away")
        return self.post()

    def database_down(self):
        with pytest.MonkeyPatch.context() as patched:
            patched.setitem(connection.settings_dict, "HOST", "/nowhere")
            connection.close()
            return self.post()

    def unforeseen(self):
        self._fixture("settings").CRASHPOINTS = {"accept.before_insert": "raise"}
        return self.post()

    def under_way(self):
        return self.get(make_operation(owner=self.user))

    def known(self):
        return self.get(make_operation(owner=self.user, version=3), If_None_Match='W/"3"')

    def succeeded(self):
        return self.get(make_operation(owner=self.user, status="succeeded"))

    def failed(self):
        return self.get(make_operation(owner=self.user, status="failed_permanent"))

    def outcome_unknown(self):
        waits = {"status": "retry_scheduled", "reason": "outcome_unknown"}
        return self.get(make_operation(owner=self.user, **waits))

    def of_another(self):
        anothers = self.get(make_operation(), X_Request_ID="r-1")
        unknown = self.api.get(f"/v1/operations/{uuid.uuid4()}", headers={"X-Request-ID": "r-1"})
        assert told(anothers) == told(unknown)
        return anothers

    def purged(self):
        operation = make_operation(owner=self.user, status="succeeded")
        Operation.objects.all().delete()
        return self.get(operation)

    def waited(self):
        return self.get(make_operation(owner=self.user, status="succeeded"), Prefer="wait=1")

    def cancelled(self):
        return self.cancel()

    def asked_to_stop(self):
        return self.cancel(status="processing")

    def cancelled_too_late(self):
        return self.cancel(status="succeeded")

    def cancelled_unseen(self):
        operation = make_operation(owner=self.user, version=3)
        return self.api.post(f"/v1/operations/{operation.id}/cancel", headers={"If-Match": 'W/"2"'})
