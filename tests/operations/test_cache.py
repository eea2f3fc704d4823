"""Cached values: fresh after a commit whatever slow readers do, and not in the way when the cache is away."""

import json
import socket
import time

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone
from redis.exceptions import RedisError

from operations import cache, cache_store
from operations.cache import ABSENT, Cached, Unavailable
from operations.models import AfterCommit
from tests.factories import make_operation
from tests.threads import together, until


class Source:
    """What is cached: a value that changes, and how often it was loaded."""

    def __init__(self, value):
        self.value = value
        self.loads = 0

    def load(self, *parts):
        self.loads += 1
        return self.value


@pytest.fixture(autouse=True)
def believed():
    """Let no test leave the cache to be doubted by the next."""
    cache.breaker.begin()
    yield
    cache.breaker.begin()


@pytest.fixture
def source():
    return Source("old")


@pytest.fixture
def colour(source, forget_all):
    return Cached("tests:colour", load=source.load, ttl_seconds=60)


@pytest.fixture
def forget_all(lose_redis):
    yield
    lose_redis()


class TestGet:
    def test_loads_once(self, colour, source):
        assert [colour.get(7), colour.get(7)] == ["old", "old"]
        assert source.loads == 1

    def test_keeps_apart_what_has_other_parts(self, colour, source):
        colour.get(7)
        source.value = "new"

        assert (colour.get(8), colour.get(7, 8), colour.get()) == ("new", "new", "new")
        assert colour.get(7) == "old"

    @pytest.mark.parametrize("falsy", [None, False, 0, "", [], {}])
    def test_takes_what_is_falsy_for_a_hit(self, colour, source, falsy):
        source.value = falsy

        assert [colour.get(7), colour.get(7)] == [falsy, falsy]
        assert source.loads == 1

    def test_lets_the_loads_error_rise_and_stores_nothing(self, colour, source):
        broken = Cached("tests:colour", load=lambda *parts: 1 / 0, ttl_seconds=60)

        with pytest.raises(ZeroDivisionError):
            broken.get(8)

        assert colour.get(7) == "old"

    def test_loads_without_the_cache(self, colour, source, cache_away):
        began = time.monotonic()
        assert [colour.get(7), colour.get(7)] == ["old", "old"]

        assert source.loads == 2
        assert time.monotonic() - began < 1

    def test_loads_when_the_cache_hangs(self, colour, settings):
        with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts, and never answers
            port = silent.getsockname()[1]
            there = settings.CACHES["default"]
            options = {**there["OPTIONS"], "SOCKET_TIMEOUT": 0.8}
            settings.CACHES = {
                "default": {**there, "LOCATION": f"redis://127.0.0.1:{port}/0", "OPTIONS": options}
            }
            began = time.monotonic()
            assert colour.get(7) == "old"

        # One timeout is waited for, not one for each command.
        assert time.monotonic() - began < 1.5


class TestInvalidate:
    def test_makes_the_next_read_load(self, colour, source):
        colour.get(7)
        source.value = "new"

        cache.invalidate("tests:colour:7")

        assert [colour.get(7), colour.get(7)] == ["new", "new"]
        assert source.loads == 2

    def test_leaves_the_others_alone(self, colour, source):
        colour.get(7)
        source.value = "new"

        cache.invalidate("tests:colour:8")

        assert colour.get(7) == "old"

    def test_is_not_undone_by_a_reader_that_loaded_before(self, source, forget_all):
        def load_slowly(*parts):
            """Read the old value; meanwhile a writer commits and invalidates."""
            seen = source.load()
            if source.value == "old":
                source.value = "new"
                cache.invalidate("tests:colour:7")
            return seen

        colour = Cached("tests:colour", load=load_slowly, ttl_seconds=60)

        assert colour.get(7) == "old"  # the slow reader's own answer
        assert colour.get(7) == "new"

    def test_is_not_undone_by_a_flush(self, colour, source, lose_redis):
        colour.get(7)
        source.value = "new"
        cache.invalidate("tests:colour:7")

        lose_redis()

        assert colour.get(7) == "new"

    def test_may_come_before_the_first_read(self, colour):
        cache.invalidate("tests:colour:7")

        assert colour.get(7) == "old"

    def test_says_that_it_could_not(self, cache_away):
        with pytest.raises(RedisError):
            cache.invalidate("tests:colour:7")


class TestSoft:
    @pytest.fixture
    def shade(self, source, forget_all):
        return Cached("tests:shade", load=source.load, ttl_seconds=60, soft_seconds=0.05, jitter=0.0)

    def test_is_served_at_once_and_rebuilt_meanwhile(self, shade, source):
        shade.get(7)
        source.value = "new"
        time.sleep(0.1)

        began = time.monotonic()
        stale = shade.get(7)
        took = time.monotonic() - began

        until(lambda: source.loads == 2)
        until(lambda: shade.get(7) == "new")
        assert (stale, took < 0.05) == ("old", True)

    def test_is_kept_when_the_rebuild_fails_and_not_tried_at_once_again(self, shade, source, monkeypatch):
        shade.get(7)
        tries = []
        object.__setattr__(shade, "load", lambda *parts: tries.append(parts) or 1 / 0)
        time.sleep(0.1)

        for _ in range(10):
            assert shade.get(7) == "old"
            time.sleep(0.02)

        assert len(tries) == 1


class TestRebuild:
    def test_that_fails_is_not_tried_again_for_a_while(self, source, forget_all):
        tries = []
        broken = Cached("tests:broken", load=lambda *parts: tries.append(parts) or 1 / 0, ttl_seconds=60)
        with pytest.raises(ZeroDivisionError):
            broken.get(7)

        for _ in range(5):
            with pytest.raises(Unavailable):
                broken.get(7)

        assert len(tries) == 1

    @pytest.mark.django_db(transaction=True)
    def test_is_done_by_one_of_many(self, forget_all):
        loads = []

        def load(*parts):
            loads.append(parts)
            time.sleep(0.3)
            return "value"

        slow = Cached("tests:slow", load=load, ttl_seconds=60)

        assert set(together(*[lambda: slow.get(7)] * 50)) == {"value"}
        assert len(loads) == 1

    def test_of_a_leader_that_was_killed_is_done_by_another(self, colour, source, monkeypatch):
        monkeypatch.setattr(cache, "REBUILD_SECONDS", 0.2)
        found = cache_store.read("tests:colour:7", schema=1)
        assert cache_store.begin_rebuild(
            "tests:colour:7", found.revision, seconds=0.2
        )  # and no more is heard

        began = time.monotonic()
        assert colour.get(7) == "old"

        assert time.monotonic() - began < 1.2
        assert source.loads == 1


class TestAbsent:
    def test_is_cached_and_briefly(self, source, forget_all):
        source.value = ABSENT
        gone = Cached("tests:gone", load=source.load, ttl_seconds=60, absent_seconds=0.2)

        assert [gone.get(7), gone.get(7)] == [ABSENT, ABSENT]
        assert source.loads == 1
        time.sleep(0.3)
        source.value = "there"
        assert gone.get(7) == "there"


class TestUnreadable:
    @pytest.mark.parametrize("text", ["{", "[]", '"x"', "{}", "\x80"])
    def test_is_a_miss_and_overwritten(self, colour, source, text):
        colour.get(7)
        found = cache_store.read("tests:colour:7", schema=1)
        key = cache_store._value_key("tests:colour:7", 1, found.revision)
        cache_store._client().set(key, text)

        assert [colour.get(7), colour.get(7)] == ["old", "old"]
        assert source.loads == 2

    def test_is_what_another_schema_has_stored(self, colour, source):
        colour.get(7)

        Cached("tests:colour", load=source.load, ttl_seconds=60, schema=2).get(7)

        assert source.loads == 2


class TestJitter:
    def test_spreads_what_was_filled_together(self, source, forget_all):
        many = Cached("tests:many", load=source.load, ttl_seconds=100, jitter=0.3)
        for number in range(1_000):
            many.get(number)

        client = cache_store._client()
        left = [client.pttl(key) / 1_000 for key in client.scan_iter("*:value:tests:many:*", count=5_000)]
        assert len(left) == 1_000
        assert max(left) - min(left) >= 20


class TestStrict:
    @pytest.fixture
    def exact(self, source, forget_all):
        return Cached("tests:exact", load=source.load, ttl_seconds=60, strict=True)

    def test_is_not_served_old_by_a_writer_that_died_after_its_commit(self, exact, source):
        exact.get(7)
        cache.about_to_change(["tests:exact:7"])
        source.value = "new"  # it is committed, and nobody invalidates

        assert [exact.get(7), exact.get(7)] == ["new", "new"]

    def test_is_cached_again_after_the_invalidation(self, exact, source):
        exact.get(7)
        cache.about_to_change(["tests:exact:7"])
        cache.invalidate("tests:exact:7")

        assert [exact.get(7), exact.get(7)] == ["old", "old"]
        assert source.loads == 2

    def test_marks_no_other_kind(self, colour, source):
        colour.get(7)
        cache.about_to_change(["tests:colour:7"])

        colour.get(7)
        assert source.loads == 1


@pytest.mark.django_db
class TestBreaker:
    def test_leaves_a_cache_alone_that_does_not_answer(self, colour, source, cache_away):
        for _ in range(cache.breaker.FAILURES):
            colour.get(7)
        asked = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cache_store, "read", lambda *name, **how: asked.append(name))
            assert colour.get(7) == "old"

        assert asked == []

    def test_asks_again_after_a_pause(self, colour, source, monkeypatch):
        cache.breaker._failures, cache.breaker._open_until = 3, time.monotonic() + 0.1
        assert cache.breaker.bypasses()
        time.sleep(0.15)
        monkeypatch.setattr(cache.breaker, "LOOK_SECONDS", 0.0)

        assert not cache.breaker.bypasses()

    def test_does_not_believe_what_may_have_missed_an_invalidation(self, colour, source, monkeypatch):
        monkeypatch.setattr(cache.breaker, "LOOK_SECONDS", 0.0)
        colour.get(7)
        source.value = "new"  # committed while the cache was away: the relay owes it
        owed = AfterCommit.objects.create(
            operation=make_operation(), invalidate=["tests:colour:7"], tries=0, run_at=timezone.now()
        )
        cache.breaker._failures = 3

        assert colour.get(7) == "new"

        cache.invalidate("tests:colour:7")
        owed.delete()
        assert colour.get(7) == "new"
        assert cache.breaker._failures == 0


class TestCommand:
    def test_lists_what_makes_each_stale(self, capsys):
        call_command("caches", "--json")

        told = {each["cache"]: each for each in json.loads(capsys.readouterr().out)}
        view = told["inventory:view"]
        assert view["stale_after"] == {
            "inventory.sync": ["inventory:view:{user_id}"],
            "inventory.grant": ["inventory:view:{user_id}"],
        }
        assert view["kept_seconds"] > view["fresh_seconds"] > 0

    def test_clears_one_and_touches_nothing_else(self, colour, source, capsys):
        other = Cached("tests:other", load=source.load, ttl_seconds=60)
        for number in range(3):
            colour.get(number)
        other.get(1)
        cache_store._client().set("a queue's own key", "1")

        call_command("caches", "clear", "tests:colour")

        assert (cache_store.count("tests:colour"), cache_store.count("tests:other")) == (0, 1)
        assert cache_store._client().get("a queue's own key") == b"1"

    def test_knows_no_other_name(self):
        with pytest.raises(CommandError, match="no cache is called 'x'"):
            call_command("caches", "clear", "x")

    def test_says_that_the_cache_is_away(self, cache_away):
        with pytest.raises(CommandError, match="does not answer"):
            call_command("caches")
