"""Caches that end with the test that declares them."""

from contextlib import contextmanager

from operations import cache_connection, cache_kinds, cache_orders, cache_store
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
    known = dict(cache_kinds._declared)

    def declare(name, load, **how):
        cache_kinds._declared.pop(name, None)  # a test may declare anew what it has declared
        return Cached(name, **{"parts": ("id",), "load": load, "ttl_seconds": 60, **how})

    try:
        yield declare
    finally:
        cache_kinds._declared.clear()
        cache_kinds._declared.update(known)
        cache_orders.orders._known = {}


@contextmanager
def restarting():
    """Give a function after which the cache's server is another run, to which nobody is connected."""
    real, runs = cache_connection.run_of, [0]
    cache_connection.run_of = lambda connection: f"{real(connection)}.{runs[0]}"

    def restart():
        runs[0] += 1
        cache_store.client().connection_pool.disconnect()

    try:
        restart()
        yield restart
    finally:
        cache_connection.run_of = real
        cache_store.client().connection_pool.disconnect()


def change(cached, **attributes):
    """Let a declared cache be another."""
    for name, value in attributes.items():
        object.__setattr__(cached, name, value)
