"""The page of caches: who may act, what is shown, what an act does."""

import pytest
from django.urls import reverse

from operations import cache_store
from operations.models import AuditEntry, CacheOrder
from tests.operations.people import browser

pytestmark = pytest.mark.django_db

PAGE = "admin:operations_cacheorder_caches"
CLEAR = {"cache": "tests:colour", "act": "clear", "reason": "it shows <b>old</b> sizes"}


def keeper():
    return browser("view_cacheorder", "control_jobcontrol")


class TestCaches:
    @pytest.mark.parametrize(
        ("permissions", "answers"),
        [
            ((), [403, 403]),
            (("control_jobcontrol",), [403, 403]),
            (("view_cacheorder",), [200, 403]),
            (("view_cacheorder", "control_jobcontrol"), [200, 302]),
        ],
    )
    def test_wants_a_permission_of_its_own(self, colour, permissions, answers):
        one = browser(*permissions)
        colour.get(7)

        assert [one.get(reverse(PAGE)).status_code, one.post(reverse(PAGE), CLEAR).status_code] == answers
        assert len(list(cache_store.keys_of("value", "tests:colour"))) == (302 not in answers)

    def test_shows_how_each_does(self, colour):
        shown = keeper().get(reverse(PAGE)).content.decode()

        assert "tests:colour" in shown
        assert "inventory.grant → inventory:view:{user_id}" in shown

    def test_keeps_who_and_why(self, colour):
        one = keeper()

        one.post(reverse(PAGE), CLEAR, headers={"X-Request-ID": "r-7"})

        entry = AuditEntry.objects.get()
        assert (entry.actor, entry.reason, entry.request_id, entry.target) == (
            one.user.get_username(),
            CLEAR["reason"],
            "r-7",
            "cache:tests:colour",
        )

    def test_gives_other_times_and_takes_them_back(self, colour):
        one = keeper()
        order = CLEAR | {"act": "order", "soft_seconds": "5", "revalidate": "false"}

        assert one.post(reverse(PAGE), order).status_code == 302
        ordered = CacheOrder.objects.get()
        assert (ordered.soft_seconds, ordered.jitter, ordered.revalidate) == (5.0, None, False)
        assert "nothing stale" in one.get(reverse(PAGE)).content.decode()

        assert one.post(reverse(PAGE), CLEAR | {"act": "reset"}).status_code == 302
        ordered.refresh_from_db()
        assert (ordered.soft_seconds, ordered.revalidate) == (None, True)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"cache": "nothing"},
            {"reason": " "},
            {"act": "burn"},
            {"act": "order"},
            {"act": "order", "soft_seconds": "61"},
            {"act": "order", "jitter": "x"},
        ],
    )
    def test_that_makes_no_sense_changes_nothing(self, colour, wrong):
        colour.get(7)

        answer = keeper().post(reverse(PAGE), CLEAR | wrong)

        assert answer.status_code == 200
        assert "tg-wrong" in answer.content.decode()
        assert not CacheOrder.objects.exists()
        assert len(list(cache_store.keys_of("value", "tests:colour"))) == 1

    def test_says_that_the_cache_is_away(self, colour, cache_away):
        one = keeper()

        assert "The cache does not answer (ConnectionError)" in one.get(reverse(PAGE)).content.decode()
        assert "the cache does not answer" in one.post(reverse(PAGE), CLEAR).content.decode()
