"""Rebuilding what is not cached: by one reader of all, who may fail, be slow, be killed, or have to wait."""

import threading
import time
from contextlib import suppress

import pytest
from redis.exceptions import TimeoutError as RedisTimeout

from operations import (
    cache_flights,
    cache_leads,
    cache_rebuild,
    cache_store,
)
from operations.cache import Unavailable
from operations.cache_flights import Flights, Room
from operations.cache_leads import leads
from operations.cache_scripts import READ, STORE
from tasks.retry import SoftLimitPassed
from tests.caching import change
from tests.threads import aside, together, until

NAME = "tests:colour:7"


class TestRebuild:
    def test_that_fails_is_not_tried_again_for_a_while(self, caplog, declare):
        tries = []
        broken = declare("tests:broken", lambda *parts: tries.append(parts) or 1 / 0)

        for _ in range(5):
            with pytest.raises(Unavailable) as raised:
                broken.get(7)
            assert 0 < raised.value.wait <= cache_rebuild.COOL_SECONDS

        assert len(tries) == 1
        assert caplog.text.count("ZeroDivisionError") >= 1  # nobody else tells of it

    def test_is_led_by_who_asks_twice_because_the_answer_was_lost(self, colour, source):
        place = colour.place((7,))

        turns = [cache_store.read(place, token="one", lead_seconds=5).turn for _ in range(2)]
        revision = cache_store.read(place).revision
        turns += [cache_store.lead(place, revision, token, seconds=5) for token in ("one", "other")]

        assert turns == [1, 1, 1, 0]

    def test_is_tried_again_after_that(self, source, monkeypatch, declare):
        monkeypatch.setattr(cache_rebuild, "COOL_SECONDS", 0.05)
        broken = declare("tests:broken", lambda *parts: 1 / 0)
        with pytest.raises(Unavailable):
            broken.get(7)
        change(broken, load=source.load)
        time.sleep(0.1)

        assert broken.get(7) == "old"

    @pytest.mark.django_db(transaction=True)
    def test_is_done_by_one_of_many(self, declare):
        loads = []

        def load(*parts):
            loads.append(parts)
            time.sleep(0.3)
            return "value"

        slow = declare("tests:slow", load)

        assert set(together(*[lambda: slow.get(7)] * 50)) == {"value"}
        assert len(loads) == 1

    def test_of_a_leader_that_was_killed_is_done_by_another(self, source, declare):
        colour = declare("tests:colour", source.load, rebuild_seconds=0.2)
        place = colour.place((7,))
        found = cache_store.read(place)
        assert cache_store.lead(place, found.revision, "killed", seconds=0.2) == 1  # and no more is heard

        began = time.monotonic()
        assert colour.get(7) == "old"

        assert time.monotonic() - began < 1.2
        assert source.loads == 1

    def test_that_takes_too_long_is_not_stored_over_that_of_another(self, source, declare):
        def load_slowly(*parts):
            seen = source.load()
            if source.loads == 1:
                time.sleep(0.15)  # its lead ends
                source.value = "new"  # committed, and its writer has yet to tell the cache
                assert colour.get(7) == "new"
            return seen

        colour = declare("tests:colour", load_slowly, rebuild_seconds=0.1)
        first = []
        reader = threading.Thread(target=lambda: first.append(read_in_turn(colour)))

        reader.start()
        reader.join(5)

        assert first == ['"old"']
        assert colour.get(7) == "new"

    def test_gives_who_waits_too_long_a_load_of_its_own(self, source, monkeypatch, declare):
        monkeypatch.setattr(cache_rebuild, "FOLLOW_SECONDS", 0.05)
        colour = declare("tests:colour", source.load, rebuild_seconds=0.05)
        place = colour.place((7,))
        found = cache_store.read(place)
        assert cache_store.lead(place, found.revision, "somebody's", seconds=5) == 1

        assert colour.get(7) == "old"

    def test_that_fails_for_who_waited_in_vain_is_told_as_any_other(self, declare, monkeypatch):
        monkeypatch.setattr(cache_rebuild, "FOLLOW_SECONDS", 0.05)
        broken = declare("tests:broken", lambda id: 1 / 0, rebuild_seconds=0.05)
        place = broken.place((7,))
        found = cache_store.read(place)
        cache_store.lead(place, found.revision, "somebody's", seconds=5)

        with pytest.raises(Unavailable):
            broken.get(7)


def read_in_turn(cached):
    """Read as a process of its own, that shares nothing with this one."""
    place, token = cached.place((7,)), "its"
    found = cache_rebuild.look(cached, place, token)
    return cache_rebuild.obtain(cached, place, found, token, (7,))


class TestLostAnswer:
    """The cache has done what it was asked, or has not, and nobody hears of it."""

    @pytest.fixture
    def lose(self, monkeypatch, colour):
        """Give a function that loses the answer to a script, once; or the script."""
        colour.get(8)  # so that the run of the server is known
        real = cache_store.script

        def lose(which, *, done):
            lost = []

            def script(text, keys, values, redis=None):
                if text == which and not lost:
                    lost.append(done and real(text, keys, values, redis))
                    raise RedisTimeout
                return real(text, keys, values, redis)

            monkeypatch.setattr(cache_store, "script", script)

        monkeypatch.setattr(cache_leads, "LOOK_SECONDS", 0.05)
        return lose

    def next_read_takes(self, cached):
        cache_rebuild.flights.begin()
        began = time.monotonic()
        assert cached.get(7) == "old"
        return time.monotonic() - began

    def test_to_a_read_that_leads_keeps_no_other_reader_waiting(self, colour, lose):
        lose(READ, done=True)

        assert colour.get(7) == "old"
        assert self.next_read_takes(colour) < 2

    @pytest.mark.parametrize("done", [True, False])
    def test_to_a_store_keeps_no_other_reader_waiting(self, colour, lose, done):
        lose(STORE, done=done)

        assert colour.get(7) == "old"
        assert self.next_read_takes(colour) < 2

    def test_is_no_more_thought_of_when_its_lead_is_let_go(self, colour, lose):
        lose(READ, done=True)
        colour.get(7)

        until(lambda: colour.get(8) and not leads._lost)

    def test_is_thought_of_again_when_the_cache_is_back(self, colour, lose, monkeypatch):
        lose(READ, done=True)
        with monkeypatch.context() as away:
            away.setattr(cache_store, "let_go", lambda *asked: (_ for _ in ()).throw(RedisTimeout))
            colour.get(7)
            leads.let_go()
            assert leads._lost

        assert self.next_read_takes(colour) < 2

    def test_leaves_another_leader_alone(self, colour):
        place = colour.place((7,))
        found = cache_store.read(place, token="another's", lead_seconds=5)
        assert found.turn == 1

        cache_store.let_go(place, "mine")

        assert cache_store.read(place, token="mine", lead_seconds=5).turn == 0


@pytest.mark.django_db(transaction=True)
class TestRebuildIsOne:
    def test_of_a_key_while_its_leader_waits_for_a_place(self, declare, monkeypatch):
        """Who waits is overtaken; when its place is free, it has what the other has loaded."""
        monkeypatch.setattr(cache_flights, "AT_ONCE", 1)
        monkeypatch.setattr(cache_rebuild, "room", Room())
        at_once, most, lock = [0], [0], threading.Lock()

        def load(id):
            with lock:
                at_once[0] += 1
                most[0] = max(most[0], at_once[0])
            time.sleep(0.4)
            with lock:
                at_once[0] -= 1
            return "value"

        slow = declare("tests:slow", load, rebuild_seconds=0.5)
        with cache_rebuild.room.hold(1):
            first = aside(lambda: slow.get(7))  # leads, and waits
            time.sleep(0.7)  # its lead ends
            monkeypatch.setattr(cache_rebuild, "flights", Flights())

            def elsewhere():
                """Do as another process, with a room of its own."""
                place, token = slow.place((7,)), "its"
                found = cache_rebuild.look(slow, place, token)
                assert found.turn == 1
                text = cache_rebuild._load_as_leader(slow, place, found.revision, token, (7,))
                cache_rebuild._store(slow, place, found.revision, token, text)

            second = aside(elsewhere)
            time.sleep(0.1)
        assert first.result(5) == "value"
        second.result(5)

        assert most[0] == 1

    def test_is_stored_even_if_its_leader_has_waited_for_a_place(self, declare, monkeypatch):
        """The load itself takes no time, and yet nothing is ever stored while loads are many."""
        monkeypatch.setattr(cache_flights, "AT_ONCE", 1)
        monkeypatch.setattr(cache_rebuild, "room", Room())
        quick = declare("tests:quick", lambda id: "value", rebuild_seconds=0.3)
        with cache_rebuild.room.hold(1):
            first = aside(lambda: quick.get(7))
            time.sleep(0.5)
        assert first.result(5) == "value"

        assert cache_store.read(quick.place((7,))).entry is not None


@pytest.mark.django_db(transaction=True)
class TestNested:
    def test_values_do_not_wait_for_who_waits_for_their_place(self, declare, monkeypatch):
        monkeypatch.setattr(cache_flights, "AT_ONCE", 1)
        monkeypatch.setattr(cache_rebuild, "room", Room())
        in_room, go_on = threading.Event(), threading.Event()
        inner = declare("tests:inner", lambda id: "inner", rebuild_seconds=2.0)

        def load(id):
            in_room.set()
            go_on.wait(5)
            return [inner.get(id)]

        outer = declare("tests:outer", load)
        first = aside(lambda: outer.get(7))
        in_room.wait(5)
        second = aside(lambda: inner.get(7))  # leads, and waits for the place that the first holds
        time.sleep(0.2)
        began = time.monotonic()
        go_on.set()

        assert first.result(10) == ["inner"]
        with suppress(Unavailable):
            second.result(10)
        assert time.monotonic() - began < 1  # nothing here takes any time

    def test_failure_of_a_moment_does_not_keep_the_outer_away_for_longer(self, declare, monkeypatch):
        inner = declare("tests:inner", lambda id: "inner")
        place = inner.place((7,))
        found = cache_store.read(place, token="its", lead_seconds=5)
        cache_store.give_up(place, found.revision, "its", seconds=0.05)
        outer = declare("tests:outer", lambda id: [inner.get(id)])
        with suppress(Unavailable):
            outer.get(7)
        time.sleep(0.1)

        assert outer.get(7) == ["inner"]


class TestSoftLimit:
    """SIGALRM raises anywhere in the main thread of a worker."""

    def test_in_a_load_lets_the_next_reader_rebuild_at_once(self, declare):
        loads = []

        def load(id):
            loads.append(id)
            if len(loads) == 1:
                raise SoftLimitPassed("now")
            return "value"

        stopped = declare("tests:stopped", load, rebuild_seconds=2.0)
        with suppress(SoftLimitPassed):
            stopped.get(7)

        began = time.monotonic()
        assert stopped.get(7) == "value"
        assert time.monotonic() - began < 1
