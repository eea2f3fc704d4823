"""Reading what one owns: cached, and fresh as soon as a sync has been committed."""

import pytest

from inventory.models import InventoryItem
from operations import jobs
from tests.factories import make_operation, make_user, work

INVENTORY = "/v1/inventory"


@pytest.mark.django_db
class TestGet:
    def test_is_empty_at_version_0_before_the_first_sync(self, api):
        response = api.get(INVENTORY)

        assert (response.status_code, response.json()) == (200, {"version": 0, "items": []})
        assert response["ETag"] == '"0"'
        assert response["Cache-Control"] == "private, no-cache"
        assert "Authorization" in response["Vary"]

    def test_shows_ones_own_only(self, api):
        InventoryItem.objects.create(user=make_user(), sku="sword", quantity=1, version=1)

        assert api.get(INVENTORY).json()["items"] == []

    @pytest.mark.parametrize(
        ("known", "status"),
        [('"0"', 304), ('W/"0"', 304), ('"7", "0"', 304), ('"1"', 200), ("0", 200), ("", 200)],
    )
    def test_is_short_when_nothing_has_changed(self, api, known, status):
        response = api.get(INVENTORY, headers={"If-None-Match": known})

        assert (response.status_code, response["ETag"]) == (status, '"0"')

    def test_is_cached(self, api, user):
        api.get(INVENTORY)
        InventoryItem.objects.create(user=user, sku="unseen", quantity=1, version=1)

        assert api.get(INVENTORY).json()["items"] == []

    def test_is_loaded_when_the_cache_is_away(self, api, user, cache_away):
        InventoryItem.objects.create(user=user, sku="sword", quantity=1, version=1)

        assert api.get(INVENTORY).json()["items"] == [{"sku": "sword", "quantity": 1}]

    def test_needs_credentials(self, client):
        assert client.get(INVENTORY).status_code == 401

    def test_only_reads(self, api):
        assert api.post(INVENTORY).status_code == 405


@pytest.mark.django_db(transaction=True)
class TestGetAfterAGrant:
    def grant(self, user, order="o-1", quantity=2):
        payload = {"order_id": order, "sku": "sword", "quantity": quantity, "user_id": user.pk}
        return work(make_operation(job=jobs.get("inventory.grant"), owner=user, payload=payload))

    def test_shows_what_was_bought_on_top_of_what_the_provider_says(self, api, user):
        InventoryItem.objects.create(user=user, sku="sword", quantity=1, version=1)
        before = api.get(INVENTORY)

        assert self.grant(user).status == "succeeded"
        after = api.get(INVENTORY)

        assert after.json()["items"] == [{"sku": "sword", "quantity": 3}]
        assert (before["ETag"], after["ETag"]) == ('"0"', '"0+1"')

    def test_counts_an_order_once(self, api, user):
        self.grant(user)
        self.grant(user, quantity=9)

        assert api.get(INVENTORY).json()["items"] == [{"sku": "sword", "quantity": 2}]

    def test_is_not_undone_by_the_next_sync(self, api, user, provider):
        self.grant(user)
        provider.has(version=7, sword=1)
        work(make_operation(owner=user))

        after = api.get(INVENTORY)

        assert after.json() == {"version": 7, "items": [{"sku": "sword", "quantity": 3}]}
        assert after["ETag"] == '"7+1"'

    def test_lets_a_page_act_on_the_version_that_it_saw(self, api, user):
        self.grant(user)
        seen = api.get(INVENTORY)["ETag"]

        response = api.post(
            "/v1/inventory/sync",
            {},
            content_type="application/json",
            headers={"Idempotency-Key": "k", "If-Match": seen},
        )

        assert response.status_code == 202


@pytest.mark.django_db(transaction=True)
class TestGetAfterASync:
    def test_is_fresh(self, api, user, provider):
        provider.has(version=7, sword=1)
        api.get(INVENTORY)

        work(make_operation(owner=user))

        response = api.get(INVENTORY)
        assert response.json() == {"version": 7, "items": [{"sku": "sword", "quantity": 1}]}
        assert response["ETag"] == '"7"'
