"""Cached values: fresh after a commit whatever slow readers do, and not in the way when the cache is away."""

import socket
import time

import pytest
from redis.exceptions import RedisError

from operations import cache
from operations.cache import Cached


class Source:
    """What is cached: a value that changes, and how often it was loaded."""

    def __init__(self, value):
        self.value = value
        self.loads = 0

    def load(self, *parts):
        self.loads += 1
        return self.value


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
            broken.get(7)

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
