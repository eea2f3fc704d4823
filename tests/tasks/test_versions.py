"""Versions of a resource that come with the request: what is old is known before the work, and costs none."""

import uuid

import pytest
from django.contrib.auth.models import User
from rest_framework.serializers import CharField

from operations import accept, lifecycle
from operations.jobs import ResourceVersion
from operations.models import DeadLetter, ResourceFence
from tests.factories import WorkPayload, history, make_job, make_operation, make_request, work

pytestmark = pytest.mark.django_db(transaction=True)

RESOURCE = "tests:of:{user_id}"


class Statement(WorkPayload):
    version = ResourceVersion(required=False)
    content = CharField(default="")


class Job:
    """A job whose requests state a version, and that counts what was done."""

    def __init__(self, call=lambda run, **values: None):
        self.calls = 0
        self._call = call
        self.job = make_job(self.handle, call=self.call, payload=Statement, resource=RESOURCE)

    def call(self, run, **values):
        self.calls += 1
        self._call(run, **values)

    def handle(self, run, answer, *, user_id, **values):
        User.objects.filter(id=user_id).update(first_name="written")

    def work(self, operation):
        return work(operation, self.job)


class TestStatedVersions:
    """The version comes with the request."""

    @pytest.fixture
    def job(self):
        return Job()

    @pytest.fixture
    def stating(self, job, user):
        """Accept what states a version, and let a worker work on it."""

        def state(version, content="the same", **how):
            payload = {"user_id": user.pk, "version": version, "content": content}
            request = make_request(user, job=job.job, key=str(uuid.uuid4()), payload=payload, **how)
            return job.work(accept.accept(request).operation)

        return state

    def test_are_stored_when_they_are_accepted(self, job, user):
        payload = {"user_id": user.pk, "version": "5"}

        accepted = accept.accept(make_request(user, job=job.job, payload=payload)).operation

        assert accepted.resource_version == 5

    def test_are_applied_if_newer(self, stating):
        assert [stating(version).status for version in (5, 6)] == ["succeeded", "succeeded"]
        assert ResourceFence.objects.get().applied_version == 6

    @pytest.mark.parametrize(("version", "reason"), [(4, "stale_version"), (5, "duplicate")])
    def test_spend_no_run_if_not(self, stating, job, version, reason):
        stating(5)

        old = stating(version)

        assert (old.status, old.reason, old.runs, old.attempt) == ("ignored", reason, 0, 0)
        assert history(old)[1:] == [("queued", "ignored", reason)]
        assert job.calls == 1
        assert ResourceFence.objects.get().fence == 1, "it raised the fence"

    def test_are_buried_if_the_same_says_something_else(self, stating, job):
        stating(5)

        other = stating(5, "something else")

        assert (other.status, other.reason, other.runs) == ("failed_permanent", "invalid_input", 0)
        letter = DeadLetter.objects.get()
        assert letter.error_message == "version 5 was applied before with other content"
        assert job.calls == 1

    def test_may_be_left_out(self, job, user):
        accepted = accept.accept(make_request(user, job=job.job)).operation

        assert (job.work(accepted).status, accepted.resource_version) == ("succeeded", None)

    def test_are_held_to_the_fence_at_the_commit(self, user):
        def overtaken(run, **values):
            ResourceFence.objects.update(applied_version=9, applied_by=uuid.uuid4())

        job = Job(call=overtaken)
        request = make_request(user, job=job.job, payload={"user_id": user.pk, "version": 8})

        operation = job.work(accept.accept(request).operation)

        assert (operation.status, operation.reason) == ("ignored", "stale_version")
        assert not User.objects.filter(first_name="written").exists()

    def test_wake_who_waits_for_the_resource(self, stating, broker, user):
        stating(5)
        waiting = make_operation(
            resource=RESOURCE.format(user_id=user.pk), status="retry_scheduled", reason="lock_contended"
        )

        stating(4)

        assert str(waiting.id) in str(broker.messages(waiting.job_type))

    def test_are_not_passed_over_for_what_the_database_does_not_find_old(self, job, user):
        payload = {"user_id": user.pk, "version": 5}
        operation = accept.accept(make_request(user, job=job.job, payload=payload)).operation
        ResourceFence.objects.create(resource=operation.resource, applied_version=4, applied_by=uuid.uuid4())

        assert lifecycle.pass_over(operation.id, reason="stale_version", actor="worker-a/1") is None

    def test_are_gone_on_with_by_the_operation_that_applied_them(self, job, user):
        payload = {"user_id": user.pk, "version": 5}
        operation = accept.accept(make_request(user, job=job.job, payload=payload)).operation
        ResourceFence.objects.create(resource=operation.resource, applied_version=5, applied_by=operation.id)

        assert job.work(operation).status == "succeeded"
