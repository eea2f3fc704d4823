"""A cache that does not answer is left alone, and believed again when it has missed nothing."""

import pytest

from operations import (
    cache_breaker,
    cache_rebuild,
    cache_store,
    cache_writers,
)
from operations.cache_breaker import Breaker
from operations.models import AfterCommit
from tests.factories import make_operation
from tests.threads import until

NAME = "tests:colour:7"


@pytest.mark.django_db(transaction=True)
class TestBreaker:
    @pytest.fixture(autouse=True)
    def at_once(self, monkeypatch):
        monkeypatch.setattr(cache_breaker, "LOOK_SECONDS", 0.0)
        monkeypatch.setattr(cache_breaker, "PAUSE_SECONDS", 0.0)

    def test_leaves_a_cache_alone_that_does_not_answer(self, colour, monkeypatch, cache_away):
        monkeypatch.setattr(cache_breaker, "PAUSE_SECONDS", 60.0)
        for _ in range(cache_breaker.FAILURES):
            colour.get(7)
        asked = []
        monkeypatch.setattr(cache_store, "script", lambda *what: asked.append(what))

        assert colour.get(7) == "old"
        assert asked == []

    def test_is_not_opened_by_failures_that_are_not_in_a_row(self, colour, monkeypatch):
        tried = Breaker()
        for _ in range(cache_breaker.FAILURES):
            with pytest.raises(OSError, match="x"):
                tried.guard(lambda: (_ for _ in ()).throw(OSError("x")))
            tried.guard(int)

        assert not tried.bypasses()

    def test_asks_again_after_a_pause_and_nobody_waits_for_that(self, colour, settings):
        breaker = cache_rebuild.breaker
        breaker._open()
        assert breaker.bypasses()

        until(lambda: not breaker.bypasses())

    def test_stays_away_from_a_cache_that_is_still_away(self, cache_away):
        breaker = cache_rebuild.breaker
        breaker._open()
        breaker.look()

        assert breaker.is_open

    def test_does_not_believe_what_may_have_missed_an_invalidation(self, colour, source):
        breaker = cache_rebuild.breaker
        colour.get(7)
        source.value = "new"  # committed while the cache was away: the relay owes it
        owed = AfterCommit.objects.create(
            operation=make_operation(), invalidate=[NAME], tries=0, run_at="2000-01-01T00:00:00Z"
        )
        breaker._open()

        breaker.look()
        assert breaker.is_open
        assert colour.get(7) == "new"

        cache_writers.invalidate([NAME])
        owed.delete()
        breaker.look()
        assert not breaker.is_open
        assert colour.get(7) == "new"

    def test_doubts_anew_a_cache_that_went_away_while_it_was_doubted(self, monkeypatch):
        breaker = cache_rebuild.breaker
        breaker._open()
        owed = AfterCommit.objects.create(invalidate=[NAME], run_at="2000-01-01T00:00:00Z")
        breaker.look()
        with monkeypatch.context() as away:
            away.setattr(cache_store, "answers", lambda: (_ for _ in ()).throw(OSError))
            breaker.look()
        owed.delete()
        later = AfterCommit.objects.create(invalidate=[NAME], run_at="2000-01-01T00:00:00Z")

        breaker.look()

        assert breaker.is_open
        later.delete()

    def test_is_not_looked_after_by_two_at_once(self, monkeypatch):
        asked = []
        monkeypatch.setattr(cache_breaker.chores, "do", lambda name, work: asked.append(name))
        monkeypatch.setattr(cache_breaker, "PAUSE_SECONDS", 60.0)
        cache_rebuild.breaker._open()

        assert cache_rebuild.breaker.bypasses()
        assert asked == []
