"""The sync job's handler: our rows become the snapshot's, and never an older one's."""

import pytest

from inventory.jobs import sync
from inventory.models import InventoryItem
from tests.factories import make_user

pytestmark = pytest.mark.django_db


def apply(user, version, **items):
    answer = {"version": version, "items": [{"sku": sku, "quantity": n} for sku, n in items.items()]}
    return sync(None, answer, user_id=user.pk)


def owned(user):
    items = InventoryItem.objects.filter(user=user).order_by("sku")
    return list(items.values_list("sku", "quantity", "version"))


class TestSync:
    def test_writes_the_snapshot(self, user):
        assert apply(user, 1, sword=1, potion=3) == {"version": 1, "items": 2}

        assert owned(user) == [("potion", 3, 1), ("sword", 1, 1)]

    def test_changes_adds_and_removes(self, user):
        apply(user, 1, sword=1, potion=3)

        apply(user, 2, sword=2, shield=1)

        assert owned(user) == [("shield", 1, 2), ("sword", 2, 2)]

    def test_may_empty_the_inventory(self, user):
        apply(user, 1, sword=1)

        assert apply(user, 2) == {"version": 2, "items": 0}

        assert owned(user) == []

    def test_does_the_same_when_repeated(self, user):
        for _ in range(2):
            apply(user, 1, sword=1)

        assert owned(user) == [("sword", 1, 1)]

    def test_never_puts_an_older_version_over_a_newer(self, user):
        apply(user, 2, sword=2)

        apply(user, 1, sword=1)

        assert owned(user) == [("sword", 2, 2)]

    def test_takes_the_last_of_what_a_snapshot_names_twice(self, user):
        twice = [{"sku": "sword", "quantity": 1}, {"sku": "sword", "quantity": 2}]

        sync(None, {"version": 1, "items": twice}, user_id=user.pk)

        assert owned(user) == [("sword", 2, 1)]

    def test_leaves_other_users_alone(self, user):
        other = make_user()
        apply(other, 1, sword=1)

        apply(user, 5, shield=1)
        apply(user, 6)

        assert owned(other) == [("sword", 1, 1)]

    def test_takes_ten_thousand_items(self, user):
        apply(user, 1, **{f"sku-{number}": 1 for number in range(10_000)})

        assert InventoryItem.objects.filter(user=user).count() == 10_000
