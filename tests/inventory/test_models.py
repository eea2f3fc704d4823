"""What the database refuses about inventories."""

import pytest
from django.db import IntegrityError, transaction

from inventory.models import InventoryItem

pytestmark = pytest.mark.django_db


class TestInventoryItem:
    @pytest.fixture
    def sword(self, user):
        return InventoryItem.objects.create(user=user, sku="sword", quantity=0, version=1)

    def test_has_one_row_an_item(self, sword, user):
        with pytest.raises(IntegrityError, match="one_row_an_item"), transaction.atomic():
            InventoryItem.objects.create(user=user, sku="sword", quantity=1, version=2)

    def test_is_never_owned_less_than_not_at_all(self, sword):
        with pytest.raises(IntegrityError, match="quantity_not_negative"), transaction.atomic():
            InventoryItem.objects.update(quantity=-1)
