"""Readers, a writer and losses of the cache in every order: no read is old once it was told.

Each actor is a thread that takes one step when the schedule says so. Readers are of different processes: none
waits for another, and no lock of a rebuild holds them up, as if each had just ended.
"""

import itertools
import random
import threading

import pytest

from operations import cache, cache_store
from operations.cache import Cached

NAME = "tests:scheduled"


class Actor(threading.Thread):
    """Does its work step by step."""

    def __init__(self, play, work):
        super().__init__(daemon=True)
        self._play, self._work = play, work
        self.may_go, self.has_stopped = threading.Semaphore(0), threading.Semaphore(0)
        self.is_over = False

    def run(self):
        self.may_go.acquire()
        self._play.actor.current = self
        self._work()
        self.is_over = True
        self.has_stopped.release()

    def step(self):
        """Go on to the next step, or to the end."""
        if not self.is_over:
            self.may_go.release()
            assert self.has_stopped.acquire(timeout=5)


class Play:
    """One schedule: what is in the database, what the readers saw, and what they might have."""

    def __init__(self):
        self.actor = threading.local()
        self.committed = self.told = 0  # versions: in the database, and of which the cache was told
        self.wrong, self.hits, self.reads = [], 0, 0
        self.cached = Cached(NAME, load=self.load, ttl_seconds=60)

    def pause(self):
        """Let others go on before the next step."""
        current = getattr(self.actor, "current", None)
        if current is not None:
            current.has_stopped.release()
            current.may_go.acquire()

    def load(self, *parts):
        seen = self.committed
        self.pause()
        return seen

    def read(self):
        least = self.told
        seen = self.cached.get(7)
        if seen < least:
            self.wrong.append((seen, least))

    def write(self):
        self.committed += 1
        version = self.committed
        self.pause()
        cache.invalidate(f"{NAME}:7")
        self.told = max(self.told, version)

    def lose_everything(self):
        cache_store._client().flushdb()

    def lose_the_revision(self):
        cache_store._client().delete(cache_store._key("revision", f"{NAME}:7"))

    def perform(self, works, order):
        actors = [Actor(self, work) for work in works]
        for actor in actors:
            actor.start()
        for number in order:
            actors[number].step()
        while not all(actor.is_over for actor in actors):
            for actor in actors:
                actor.step()
        self.read()
        return self.wrong


@pytest.fixture
def play(monkeypatch, lose_redis):
    """Give a function that performs a schedule from an empty cache."""
    real = cache_store.store

    def perform(roles, order):
        cache_store._client().flushdb()
        new = Play()

        def store(*args, **how):
            new.pause()
            real(*args, **how)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cache._flights, "share", lambda name, load, *, wait_seconds: load())
            patch.setattr(cache_store, "begin_rebuild", lambda *args, **how: "token")
            patch.setattr(cache_store, "store", store)
            return new.perform([getattr(new, role) for role in roles], order)

    cache.breaker.begin()
    yield perform
    lose_redis()


def orders(roles):
    """Give every order of the actors' steps: three for a reader, two for a writer, one for a loss."""
    steps = {"read": 3, "write": 2, "lose_everything": 1, "lose_the_revision": 1}
    taken = [number for number, role in enumerate(roles) for _ in range(steps[role])]
    return sorted(set(itertools.permutations(taken)))


SMALL = [("read", "write"), ("read", "write", "lose_everything"), ("read", "write", "lose_the_revision")]
LARGE = ("read", "read", "read", "write", "write", "lose_everything", "lose_the_revision")


class TestEverySchedule:
    @pytest.mark.parametrize("roles", SMALL)
    def test_of_one_reader_shows_nothing_old(self, play, roles):
        for order in orders(roles):
            assert play(roles, order) == [], order

    def test_of_two_readers_shows_nothing_old(self, play):
        roles = ("read", "read", "write")
        for order in orders(roles):
            assert play(roles, order) == [], order

    def test_of_many_shows_nothing_old_as_far_as_it_was_tried(self, play):
        dice = random.Random(11)
        steps = [n for n, role in enumerate(LARGE) for _ in range(3 if role == "read" else 2)]
        for _ in range(300):
            order = dice.sample(steps, len(steps))
            assert play(LARGE, order) == [], order


class TestWithoutRevisions:
    def test_a_slow_reader_brings_the_old_value_back(self, play, monkeypatch):
        """The guard away: every reader stores under the same key, and the writer deletes what is there."""
        found = cache_store.read

        def read(name, *, schema):
            real = found(name, schema=schema)
            stored = cache_store._client().get(cache_store._value_key(name, schema, "one"))
            return real._replace(revision="one", entry=cache_store._entry(stored))

        monkeypatch.setattr(cache_store, "read", read)
        monkeypatch.setattr(
            cache_store,
            "invalidate",
            lambda name: cache_store._client().delete(cache_store._value_key(name, 1, "one")),
        )
        roles = ("read", "read", "write")

        assert any(play(roles, order) for order in orders(roles))
