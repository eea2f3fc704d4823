"""Reading what one owns: cached, and fresh as soon as a sync has been committed."""

import pytest

from inventory.models import InventoryItem
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
class TestGetAfterASync:
    def test_is_fresh(self, api, user, provider):
        provider.has(version=7, sword=1)
        api.get(INVENTORY)

        work(make_operation(owner=user))

        response = api.get(INVENTORY)
        assert response.json() == {"version": 7, "items": [{"sku": "sword", "quantity": 1}]}
        assert response["ETag"] == '"7"'
