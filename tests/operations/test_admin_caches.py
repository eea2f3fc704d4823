"""The page of caches: who may act, what is shown, what an act does."""

import pytest
import redis
from django.core.cache import caches
from django.urls import reverse

from config import connections
from operations import cache_store
from operations.models import AuditEntry, CacheOrder
from operations.publish import publish
from tests.factories import make_operation
from tests.operations.people import browser

pytestmark = pytest.mark.django_db

PAGE = "admin:operations_cacheorder_caches"
CLEAR = {"cache": "tests:colour", "act": "clear", "reason": "it shows <b>old</b> sizes"}


def keeper():
    return browser("view_cacheorder", "control_jobcontrol")


def beside(settings):
    """Give the keys of every store, but for those of the cache that is cleared."""
    urls = [settings.CACHE_URL, settings.LOCK_URL, settings.QUOTA_URL]
    urls += [] if settings.ON_RABBITMQ else [connections.redis_url(settings.BROKER_URL)]
    found = []
    for url in urls:
        with redis.Redis.from_url(url) as client:
            keys = client.scan_iter(f"{settings.KEY_PREFIX}:*", count=1_000)
            found.append({key for key in keys if b"tests:colour" not in key})
    return found


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

    def test_clears_nothing_beside_it(self, colour, settings, broker):
        """C23: queues, locks, quotas, other caches and Django's own keys are as they were."""
        colour.get(7)
        caches["default"].set("somebody's", 1)
        for url in (settings.LOCK_URL, settings.QUOTA_URL):
            with redis.Redis.from_url(url) as client:
                client.set(f"{settings.KEY_PREFIX}:of somebody", 1)
        publish(make_operation(published_at=None))
        before = beside(settings)

        assert keeper().post(reverse(PAGE), CLEAR).status_code == 302

        assert beside(settings) == before
        assert broker.messages("inventory.sync")
        assert caches["default"].get("somebody's") == 1

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
