"""What a job's declaration must say, and what is refused while the code is being read."""

from datetime import timedelta

import pytest
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from operations import jobs
from operations.jobs import Backoff, NoSuchJob, OwnerID, Payload, ResourceVersion, UnsafeJob, job
from tests.factories import make_job


class Purchase(Payload):
    user_id = OwnerID()
    sku = serializers.CharField(max_length=100)
    quantity = serializers.IntegerField(min_value=1, default=1)


class Release(Payload):
    sku = serializers.CharField(max_length=100)
    number = ResourceVersion(required=False)


@pytest.fixture
def forgotten_afterwards():
    before = dict(jobs._registry)
    yield
    jobs._registry.clear()
    jobs._registry.update(before)


def declare(name="tests.declared", purpose="Do as the test says.", **contract):
    def handler(run, answer, **values):
        pass

    handler.__doc__ = purpose
    return job(name, **{"payload": Purchase, **contract})(handler)


@pytest.mark.usefixtures("forgotten_afterwards")
class TestJob:
    def test_is_found_by_its_name(self):
        handler = declare(
            retry=Backoff(1, 2), deadline=timedelta(minutes=5), invalidates=["shop:view:{user_id}"]
        )

        declared = jobs.get("tests.declared")
        assert (declared.handler, declared.purpose) == (handler, "Do as the test says.")
        assert (declared.retry.attempts, declared.deadline) == (3, timedelta(minutes=5))
        assert declared in jobs.every()

    @pytest.mark.parametrize(
        "name",
        ["", "sync", "Inventory.sync", "inventory.Sync", "inventory.sync.now", "in ventory.sync", "a.b\n"],
    )
    def test_has_a_name_that_can_be_a_queue_and_a_label(self, name):
        with pytest.raises(UnsafeJob, match="job names look like"):
            declare(name)

    @pytest.mark.parametrize(
        ("contract", "why"),
        [
            ({"name": "inventory.sync"}, "already called"),
            ({"purpose": ""}, "what the job is for"),
            ({"soft_limit": 40, "hard_limit": 40}, "must be below"),
            ({"version": len}, "needs a resource"),
            ({"payload": Release}, "needs a resource"),
            ({"payload": Release, "version": len, "resource": "shop:{sku}"}, "not with both"),
        ],
    )
    def test_is_refused_when_a_promise_could_not_be_kept(self, contract, why):
        with pytest.raises(UnsafeJob, match=why):
            declare(**contract)

    def test_is_not_known_by_another_name(self):
        with pytest.raises(NoSuchJob, match=r"no job is called 'tests.unknown'; known are .*inventory\.sync"):
            jobs.get("tests.unknown")


class TestTemplates:
    def test_name_the_resource_and_what_becomes_stale(self):
        declared = make_job(resource="shop:user:{user_id}", invalidates=("shop:view:{user_id}", "shop:top"))

        assert declared.resource_of({"user_id": 7}) == "shop:user:7"
        assert declared.stale_after({"user_id": 7}) == ["shop:view:7", "shop:top"]


class TestResourceVersion:
    @pytest.mark.parametrize(("sent", "read"), [(7, 7), ("7", 7), (2**63 - 1, 2**63 - 1)])
    def test_is_read_as_it_is_validated(self, sent, read):
        declared = make_job(payload=Release)

        assert declared.version_in({"sku": "sword", "number": sent}) == read
        assert declared.validate({"sku": "sword", "number": sent})["number"] == read

    def test_may_be_left_out(self):
        assert make_job(payload=Release).version_in({"sku": "sword"}) is None

    def test_is_in_no_payload_that_does_not_declare_it(self):
        assert make_job(payload=Purchase).version_in({"sku": "sword", "number": 7}) is None

    @pytest.mark.parametrize("number", [-1, 2**63, "seven", None, True, 1.5])
    def test_is_refused_if_no_row_could_hold_it(self, number):
        with pytest.raises(ValidationError):
            make_job(payload=Release).validate({"sku": "sword", "number": number})


class TestPayload:
    def check(self, body, owner_id=7):
        serializer = Purchase(data=body, context={"owner_id": owner_id})
        serializer.is_valid(raise_exception=True)
        return dict(serializer.validated_data)

    def test_takes_the_owner_from_the_credentials(self):
        assert self.check({"sku": "sword"}) == {"user_id": 7, "sku": "sword", "quantity": 1}

    @pytest.mark.parametrize(
        "body",
        [
            {},
            {"sku": "sword", "colour": "red"},
            {"sku": "sword", "user_id": 7},
            {"sku": "sword", "user_id": 8},
            {"sku": "sword", "quantity": 0},
            {"sku": "s" * 101},
            {"sku": None},
        ],
    )
    def test_refuses(self, body):
        with pytest.raises(ValidationError):
            self.check(body)

    def test_is_stored_as_it_was_sent_with_its_owner(self):
        assert Purchase.store({"sku": "sword"}, owner_id=7) == {"sku": "sword", "user_id": 7}

    def test_is_checked_again_as_it_was_stored(self):
        declared = make_job(payload=Purchase)

        assert declared.validate({"sku": "sword", "user_id": 7}) == {
            "user_id": 7,
            "sku": "sword",
            "quantity": 1,
        }

    @pytest.mark.parametrize(
        "stored", [{"sku": "sword"}, {"sku": "sword", "user_id": 7, "colour": "red"}, {}, []]
    )
    def test_is_refused_as_stored_by_code_that_no_longer_takes_it(self, stored):
        with pytest.raises(ValidationError):
            make_job(payload=Purchase).validate(stored)
