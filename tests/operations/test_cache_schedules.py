"""Readers, writers and losses of the cache in every order: no read is old once it was told.

Each actor is a thread that takes one step when the schedule says so. Readers are of different processes: none
waits for another, and no lock of a rebuild holds them up, as if each had just ended.
"""

import itertools
import random
import threading
from contextlib import suppress
from functools import partial
from types import SimpleNamespace

import pytest

from operations import cache_kinds, cache_rebuild, cache_store, cache_writers
from operations.cache import Cached

NAME = "tests:scheduled"
KEY = f"{NAME}:7"


class Dead(Exception):
    """A process ends here."""


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
        with suppress(Dead):
            self._work()
        self.is_over = True
        self.has_stopped.release()

    def step(self):
        """Go on to the next step, or to the end."""
        if not self.is_over:
            self.may_go.release()
            assert self.has_stopped.acquire(timeout=5)


class Play:
    """One schedule: what is in the database, what the readers saw, and what they might have.

    `told` is the version that no reader may fall behind: of the last commit whose writer told the cache. What
    is strict must not be behind `committed` at all, whoever died, unless the cache loses its marks.
    """

    def __init__(self, start_anew, *, strict=False):
        self.start_anew = start_anew
        self.actor = threading.local()
        self.committed = self.told = 0
        self.strict = strict
        self.owed = []  # what the relay has to tell the cache
        self.writers = itertools.count()
        self.wrong, self.hits, self.reads = [], 0, 0
        cache_kinds._declared.pop(NAME, None)
        self.cached = Cached(NAME, parts=("id",), load=self.load, ttl_seconds=60, strict=strict)

    def pause(self):
        """Let others go on before the next step."""
        current = getattr(self.actor, "current", None)
        if current is not None:
            current.has_stopped.release()
            current.may_go.acquire()

    def load(self, *parts):
        self.actor.loaded = True
        seen = self.committed
        self.pause()
        return seen

    def read(self):
        least = self.committed if self.strict else self.told
        self.actor.loaded = False
        seen = self.cached.get(7)
        self.reads += 1
        self.hits += not self.actor.loaded
        if seen < least:
            self.wrong.append((seen, least))

    def write(self, *, end=""):
        """Mark, commit, tell the cache; `end` says before which of these it dies or gives up."""
        writer = f"writer {next(self.writers)}"
        cache_writers.about_to_change([KEY], writer=writer, seconds=60)
        self.pause()
        if end == "rollback":
            cache_writers.unchanged([KEY], writer=writer)
            return
        self.committed += 1
        version = self.committed
        self.owed.append((writer, version))
        self.pause()
        if end == "crash":
            raise Dead
        self.tell(writer, version)

    def tell(self, writer, version):
        cache_writers.invalidate([KEY], writer=writer)
        self.told = max(self.told, version)
        with suppress(ValueError):  # the relay may have done it meanwhile
            self.owed.remove((writer, version))

    def roll_back(self):
        self.write(end="rollback")

    def write_and_die(self):
        self.write(end="crash")

    def repeat(self):
        """Do as the relay does."""
        for owed in list(self.owed):
            self.tell(*owed)

    def flush(self):
        cache_store.client().flushdb()

    def evict_the_revision(self):
        for key in cache_store.keys_of("revision", NAME):
            cache_store.client().delete(key)

    def evict_the_value(self):
        for key in cache_store.keys_of("value", NAME):
            cache_store.client().delete(key)

    def keep(self):
        """Let the server write its keys to a disk."""
        client = cache_store.client()
        kinds = [key for what in ("revision", "value") for key in cache_store.keys_of(what, NAME)]
        self.disk = {key: client.get(key) for key in kinds}

    def restart(self):
        """Start the server anew, with what it had written down: another run, which each connection learns."""
        client = cache_store.client()
        client.flushdb()
        if getattr(self, "disk", None):
            client.mset(self.disk)
        self.start_anew()

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
        self.repeat()
        self.read()
        return self.wrong


@pytest.fixture
def play(lose_redis, restart):
    """Give a function that performs a schedule from an empty cache."""
    real_store = cache_store.store

    def perform(roles, order, *, strict=False):
        cache_store.client().flushdb()
        new = Play(restart, strict=strict)

        def store(*args, **how):
            new.pause()
            return real_store(*args, **how)

        def read(place, **how):
            """Be the one who leads: the one before has just ended."""
            found = cache_store.read(place)
            if found.entry is None and not found.is_marked:
                cache_store.client().set(place.rebuild(found.revision), how["token"])
                return found._replace(turn=1)
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cache_rebuild.flights, "share", lambda name, load, **how: load())
            patch.setattr(
                cache_rebuild,
                "cache_store",
                SimpleNamespace(**vars(cache_store) | {"read": read, "store": store}),
            )
            new.perform([getattr(new, role) for role in roles], order)
        return new

    yield perform
    cache_kinds._declared.pop(NAME, None)
    lose_redis()


STEPS = {"read": 3, "write": 3, "write_and_die": 3, "roll_back": 2}  # anything else takes one


def orders(roles):
    """Give every order of the actors' steps."""
    taken = [number for number, role in enumerate(roles) for _ in range(STEPS.get(role, 1))]
    return sorted(set(itertools.permutations(taken)))


def some_orders(roles, count, seed):
    dice = random.Random(seed)
    steps = [number for number, role in enumerate(roles) for _ in range(STEPS.get(role, 1))]
    return [dice.sample(steps, len(steps)) for _ in range(count)]


LOSSES = ["flush", "evict_the_revision", "evict_the_value", "repeat"]
ALL = (
    *("read", "read", "read", "write", "write", "write_and_die", "roll_back"),
    *("keep", "restart", "flush", "evict_the_revision", "evict_the_value", "repeat"),
)


class TestEverySchedule:
    @pytest.mark.parametrize("writer", ["write", "write_and_die", "roll_back"])
    @pytest.mark.parametrize("strict", [False, True])
    def test_of_a_reader_and_a_writer_shows_nothing_old(self, play, writer, strict):
        for order in orders(("read", writer)):
            assert play(("read", writer), order, strict=strict).wrong == [], order

    @pytest.mark.parametrize("loss", LOSSES)
    @pytest.mark.parametrize("strict", [False, True])
    def test_with_a_loss_shows_nothing_old(self, play, loss, strict):
        roles = ("read", "write", loss)
        for order in orders(roles):
            assert play(roles, order, strict=strict and loss == "repeat").wrong == [], order

    def test_of_two_readers_shows_nothing_old(self, play):
        roles = ("read", "read", "write")
        for order in some_orders(roles, 200, seed=3):
            assert play(roles, order).wrong == [], order

    def test_of_two_strict_writers_shows_nothing_old(self, play):
        roles = ("read", "write", "write_and_die")
        for order in some_orders(roles, 200, seed=4):
            assert play(roles, order, strict=True).wrong == [], order

    def test_of_all_at_once_shows_nothing_old_as_far_as_it_was_tried(self, play):
        for order in some_orders(ALL, 120, seed=11):
            assert play(ALL, order).wrong == [], order


class TestHitRatio:
    def test_is_high_in_a_run_that_shows_nothing_old(self, play):
        """Many readers, a few writers, and every loss in between: hits are nine of ten and more."""
        dice = random.Random(5)
        readers = ["read"] * 400
        others = ["write"] * 8 + ["write_and_die"] + ["roll_back"] * 2 + ["repeat"] * 4
        losses = ["flush", "evict_the_revision", "evict_the_value", "keep", "restart"]
        reads = hits = 0
        for _ in range(5):
            roles = dice.sample(readers + others + losses, len(readers + others + losses))
            # In turns, with a few under way at once.
            order = [n for n, role in enumerate(roles) for _ in range(STEPS.get(role, 1))]
            for first in range(0, len(order), 5):
                near = order[first : first + 5]
                order[first : first + 5] = dice.sample(near, len(near))
            seen = play(roles, order)
            assert seen.wrong == []
            reads, hits = reads + seen.reads, hits + seen.hits

        assert reads >= 2_000
        assert hits / reads >= 0.9, f"{hits} of {reads}"


class TestWithoutAGuard:
    """Each guard away, and the schedules find what it is for."""

    def find(self, play, roles, *, strict=False):
        return any(play(roles, order, strict=strict).wrong for order in some_orders(roles, 400, seed=7))

    def test_of_revisions_a_slow_reader_brings_the_old_value_back(self, play, monkeypatch):
        """Every reader stores under the same key, and the writer deletes what is there."""
        found = cache_store.read

        def read(place, **how):
            stored = cache_store.client().get(place.value("one"))
            return found(place, **how)._replace(
                revision="one", entry=cache_store._entry(stored, 60_000, place.name)
            )

        def invalidate(namespaces, *, writer):
            cache_store.client().delete(cache_kinds.find(NAME).place((7,)).value("one"))

        monkeypatch.setattr(cache_store, "read", read)
        monkeypatch.setattr(cache_store, "invalidate", invalidate)

        assert self.find(play, ("read", "read", "write"))

    def test_of_the_servers_run_a_restart_brings_it_back(self, play, monkeypatch):
        monkeypatch.setattr(cache_store, "_in_one_run", lambda ask: ask(None, "one"))

        assert self.find(play, ("read", "keep", "write", "restart", "read"))

    def test_of_marks_a_dead_writer_leaves_it_old(self, play, monkeypatch):
        monkeypatch.setattr(cache_store, "mark", lambda *args, **how: None)

        assert self.find(play, ("read", "write_and_die", "read"), strict=True)

    def test_of_marks_for_each_writer_one_takes_anothers_away(self, play, monkeypatch):
        mark, invalidate = cache_store.mark, cache_store.invalidate
        monkeypatch.setattr(cache_store, "mark", lambda name, **how: mark(name, **how | {"writer": "all"}))
        monkeypatch.setattr(cache_store, "invalidate", lambda names, writer: invalidate(names, writer="all"))

        assert self.find(play, ("read", "write", "write_and_die", "read"), strict=True)

    def test_of_the_revision_that_a_mark_takes_a_slow_reader_is_believed(self, play, monkeypatch):
        mark = partial(cache_store.mark)

        def mark_only(name, *, writer, seconds):
            revisions = {key: cache_store.client().get(key) for key in cache_store.keys_of("revision", NAME)}
            mark(name, writer=writer, seconds=seconds)
            if revisions:
                cache_store.client().mset(revisions)

        def forget_marks(self):
            for key in cache_store.keys_of("marks", NAME):
                cache_store.client().delete(key)

        monkeypatch.setattr(cache_store, "mark", mark_only)
        monkeypatch.setattr(Play, "repeat", forget_marks)  # their time is over, and nobody told the cache

        assert self.find(play, ("read", "write_and_die"), strict=True)
