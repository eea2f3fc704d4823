"""What writers tell the cache: after a commit, before it, and when nothing came of it."""

import time
from datetime import timedelta

import pytest
from django.db import transaction
from django.db.models import F

from operations import (
    cache_store,
    cache_writers,
)
from operations.cache import Unavailable
from operations.models import AfterCommit
from tasks import relay
from tests.caching import change

NAME = "tests:colour:7"


@pytest.mark.django_db(transaction=True)
class TestInvalidateAfterCommit:
    def test_tells_the_cache_after_the_commit_and_owes_nothing(self, colour, source):
        colour.get(7)
        with transaction.atomic():
            colour.invalidate_after_commit(7)
            source.value = "new"
            assert colour.get(7) == "old"

        assert colour.get(7) == "new"
        assert not AfterCommit.objects.exists()

    def test_tells_it_nothing_after_a_rollback(self, colour, source):
        colour.get(7)
        with transaction.atomic():
            colour.invalidate_after_commit(7)
            transaction.set_rollback(True)

        assert (colour.get(7), source.loads) == ("old", 1)
        assert not AfterCommit.objects.exists()

    def test_leaves_to_the_relay_what_it_cannot_tell(self, colour, source, monkeypatch):
        colour.get(7)
        with monkeypatch.context() as away, transaction.atomic():
            away.setattr(cache_writers, "_tell_all", lambda: None)  # the process dies after its COMMIT
            colour.invalidate_after_commit(7)
            source.value = "new"
        AfterCommit.objects.update(run_at="2000-01-01T00:00:00Z")

        assert colour.get(7) == "old"
        assert relay.repeat_after_commit() == 1
        assert colour.get(7) == "new"

    def test_marks_what_is_strict(self, source, declare):
        exact = declare("tests:exact", source.load, strict=True)
        exact.get(7)
        with transaction.atomic():
            exact.invalidate_after_commit(7)
            assert cache_store.read(exact.place((7,))).is_marked

        assert not cache_store.read(exact.place((7,))).is_marked

    def test_is_due_by_the_databases_clock_within_two_periods_of_the_relay(self, colour, settings):
        with transaction.atomic():
            colour.invalidate_after_commit(7)
            transaction.get_connection().run_on_commit.clear()  # the process dies after its COMMIT

        owed = AfterCommit.objects.annotate(wait=F("run_at") - F("created_at")).get()
        assert timedelta(0) < owed.wait <= timedelta(seconds=settings.RELAY_PERIOD_SECONDS)

    def test_forgets_what_was_rolled_back(self, colour, source):
        with transaction.atomic():
            colour.invalidate_after_commit(7)
            transaction.set_rollback(True)
        with transaction.atomic():
            colour.invalidate_after_commit(8)

        assert not AfterCommit.objects.exists()
        assert cache_writers._here.pending == []

    def test_of_what_is_strict_asks_for_another_time_when_the_cache_is_away(self, declare, cache_away):
        exact = declare("tests:exact", str, strict=True)

        with transaction.atomic(), pytest.raises(Unavailable):
            exact.invalidate_after_commit(7)

        assert not AfterCommit.objects.exists()

    def test_needs_a_transaction(self, colour):
        with pytest.raises(AssertionError, match="no transaction is open"):
            colour.invalidate_after_commit(7)


class TestStrict:
    @pytest.fixture
    def exact(self, source, declare):
        return declare("tests:exact", source.load, strict=True)

    def warn(self, writer="one", seconds=0.0):
        cache_writers.about_to_change(["tests:exact:7"], writer=writer, seconds=seconds)

    def test_is_not_served_old_by_a_writer_that_died_after_its_commit(self, exact, source):
        exact.get(7)
        self.warn()
        source.value = "new"  # it is committed, and nobody invalidates

        assert [exact.get(7), exact.get(7)] == ["new", "new"]

    def test_is_cached_again_after_the_invalidation(self, exact, source):
        exact.get(7)
        self.warn()
        cache_writers.invalidate(["tests:exact:7"], writer="one")

        assert [exact.get(7), exact.get(7)] == ["old", "old"]
        assert source.loads == 2

    def test_is_cached_again_when_its_writer_has_changed_nothing(self, exact, source):
        self.warn()
        cache_writers.unchanged(["tests:exact:7"], writer="one")

        assert [exact.get(7), exact.get(7)] == ["old", "old"]
        assert source.loads == 1

    def test_waits_for_each_of_two_writers(self, exact, source):
        self.warn("one")
        self.warn("other")
        cache_writers.invalidate(["tests:exact:7"], writer="one")
        exact.get(7)
        source.value = "new"  # the other commits, and dies

        assert exact.get(7) == "new"

    def test_is_not_what_a_slow_reader_loaded_when_the_mark_ends(self, exact, source, monkeypatch):
        monkeypatch.setattr(cache_writers, "MARK_SECONDS", 0.05)

        def load_slowly(*parts):
            seen = source.load()
            if source.value == "old":
                self.warn()
                source.value = "new"  # committed, and its writer dies
            return seen

        change(exact, load=load_slowly)
        assert exact.get(7) == "old"
        time.sleep(0.1)

        assert exact.get(7) == "new"

    def test_is_not_kept_marked_by_others_for_one_that_died(self, exact, source, monkeypatch):
        monkeypatch.setattr(cache_writers, "MARK_SECONDS", 0.1)
        self.warn("dead")
        time.sleep(0.15)
        self.warn("one", seconds=10)
        cache_writers.invalidate(["tests:exact:7"], writer="one")

        assert not cache_store.read(exact.place((7,))).is_marked

    def test_is_marked_for_as_long_as_the_commit_may_take(self, exact):
        self.warn(seconds=100)

        left = cache_store.client().pttl(exact.place((7,)).marks) / 1_000
        assert 100 + cache_writers.MARK_SECONDS - 1 < left <= 100 + cache_writers.MARK_SECONDS

    def test_marks_no_other_kind(self, colour, source):
        colour.get(7)
        cache_writers.about_to_change([NAME], writer="one", seconds=0)

        colour.get(7)
        assert source.loads == 1


@pytest.mark.django_db(transaction=True)
class TestManyAtOnce:
    def test_are_told_together(self, colour, monkeypatch):
        """An admin action or a command that changes what is shown to a thousand."""
        told, real = [], cache_store.invalidate

        def invalidate(names, *, writer):
            told.append(len(names))
            real(names, writer=writer)

        monkeypatch.setattr(cache_store, "invalidate", invalidate)
        with transaction.atomic():
            for number in range(1_200):
                colour.invalidate_after_commit(number)

        assert told == [500, 500, 200]
        assert not AfterCommit.objects.exists()
