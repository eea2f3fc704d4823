"""Caches that end with the test that declares them."""

import pytest

from operations import cache, cache_orders
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
def declare(lose_redis):
    """Give a function that declares a cache of one part; no declaration and no value outlives the test."""
    known = dict(cache._declared)
    yield lambda name, load, **how: Cached(name, **{"parts": ("id",), "load": load, "ttl_seconds": 60, **how})
    cache._declared.clear()
    cache._declared.update(known)
    cache_orders.orders._known = {}
    lose_redis()


@pytest.fixture
def colour(declare, source):
    return declare("tests:colour", source.load)
