"""Caches that end with the test that declares them."""

from contextlib import contextmanager

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


@contextmanager
def declaring():
    """Give a function that declares a cache of one part, until the block ends."""
    known = dict(cache._declared)
    try:
        yield lambda name, load, **how: Cached(
            name, **{"parts": ("id",), "load": load, "ttl_seconds": 60, **how}
        )
    finally:
        cache._declared.clear()
        cache._declared.update(known)
        cache_orders.orders._known = {}
