"""Cached values: fresh after a commit whatever slow readers do, and not in the way when the cache is away."""

import os
import socket
import threading
import time
from contextlib import contextmanager
from functools import partial

import pytest
from django.core.cache import caches
from django.db import transaction
from prometheus_client.registry import REGISTRY
from redis.exceptions import RedisError

from operations import (
    cache,
    cache_books,
    cache_flights,
    cache_names,
    cache_orders,
    cache_rebuild,
    cache_store,
    cache_writers,
)
from operations.cache import ABSENT, Cached, Unavailable, UnsafeCache
from operations.cache_orders import Order
from operations.cache_scripts import INVALIDATE
from tests.caching import change
from tests.threads import together, until

NAME = "tests:colour:7"


@pytest.fixture
def counted():
    """Give a context that tells by how much a counter has grown in it."""

    @contextmanager
    def grown(name, **labels):
        def value():
            return REGISTRY.get_sample_value(name, labels) or 0.0

        before = value()
        yield lambda: value() - before

    return grown


@pytest.fixture
def silent_server():
    """Give the address of a server that accepts, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield f"redis://127.0.0.1:{silent.getsockname()[1]}/0"


class TestDeclaration:
    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            ({"name": "colour"}, "'domain:noun', not 'colour'"),
            ({"ttl_seconds": 3_601}, "at most 3600 s"),
            ({"soft_seconds": 61}, "fresh for 61 s, and kept for 60 s"),
            ({"soft_seconds": 0}, "fresh for 0 s"),
            ({"jitter": 1.1}, "a jitter is 0 to 1, not 1.1"),
            ({"absent_seconds": 61}, "absent for 61 s of 60 s"),
            ({"rebuild_seconds": 0}, "a rebuild must be given time"),
        ],
    )
    def test_that_cannot_be_kept_is_refused(self, wrong, said, declare):
        with pytest.raises(UnsafeCache, match=said):
            declare(**{"name": "tests:wrong", "load": str, **wrong})

    def test_says_how_many_parts_there_are(self, colour):
        with pytest.raises(TypeError, match="tests:colour is told by id, and got 2 values"):
            colour.get(7, 8)

    def test_of_a_name_that_is_taken_is_refused(self, colour):
        with pytest.raises(UnsafeCache, match="a cache is already called 'tests:colour'"):
            Cached("tests:colour", parts=("id",), load=str, ttl_seconds=60)


class TestGet:
    def test_loads_once(self, colour, source):
        assert [colour.get(7), colour.get(7)] == ["old", "old"]
        assert source.loads == 1

    def test_keeps_apart_what_has_other_parts(self, source, declare):
        pair = declare("tests:pair", lambda *parts: list(parts), parts=("one", "other"))
        alike = [("a:b", "c"), ("a", "b:c"), ("a%3Ab", "c"), ("a:b:c", ""), ("", "a:b:c")]

        assert [pair.get(*parts) for parts in alike] == [list(parts) for parts in alike]
        assert [pair.get(*parts) for parts in alike] == [list(parts) for parts in alike]

    @pytest.mark.parametrize("falsy", [None, False, 0, "", [], {}])
    def test_takes_what_is_falsy_for_a_hit(self, colour, source, falsy):
        source.value = falsy

        assert [colour.get(7), colour.get(7)] == [falsy, falsy]
        assert source.loads == 1

    def test_gives_whoever_loads_what_the_others_get(self, colour, source, cache_away):
        source.value = {"sizes": (1, 2), 3: "x"}

        assert colour.get(7) == {"sizes": [1, 2], "3": "x"}

    @pytest.mark.django_db(transaction=True)
    def test_gives_each_reader_a_value_of_its_own(self, colour, source):
        source.value = {"sizes": []}
        seen = together(*[lambda: colour.get(7)] * 5)
        seen[0]["sizes"].append(1)

        assert [each["sizes"] for each in seen[1:]] == [[]] * 4
        assert colour.get(7) == {"sizes": []}

    def test_stores_no_pickle(self, colour, source, caplog):
        source.value = object()

        with pytest.raises(Unavailable):
            colour.get(7)

        assert "what tests:colour loads is no JSON" in caplog.text

    def test_loads_without_the_cache(self, colour, source, cache_away):
        began = time.monotonic()
        assert [colour.get(7), colour.get(7)] == ["old", "old"]

        assert source.loads == 2
        assert time.monotonic() - began < 1

    def test_lets_the_loads_error_rise_without_the_cache(self, cache_away, declare):
        broken = declare("tests:broken", lambda *parts: 1 / 0)

        with pytest.raises(ZeroDivisionError):
            broken.get(7)

    def test_waits_for_a_cache_that_hangs_once(self, colour, settings, silent_server):
        there = settings.CACHES["default"]
        options = {**there["OPTIONS"], "SOCKET_TIMEOUT": 0.4}
        settings.CACHES = {"default": {**there, "LOCATION": silent_server, "OPTIONS": options}}

        began = time.monotonic()
        assert colour.get(7) == "old"

        # One timeout is waited for, not one for each command.
        assert time.monotonic() - began < 0.8


@pytest.mark.django_db(transaction=True)
class TestInTransaction:
    """What a transaction loads may be taken back, or be older than what the cache was told."""

    def test_serves_what_is_cached(self, colour, source):
        colour.get(7)
        with transaction.atomic():
            assert colour.get(7) == "old"

        assert source.loads == 1

    def test_stores_nothing_that_is_not_committed(self, colour, source):
        with transaction.atomic():
            source.value = "taken back"
            assert colour.get(7) == "taken back"
            transaction.set_rollback(True)
        source.value = "old"

        assert colour.get(7) == "old"

    def test_waits_for_nobody(self, colour, source):
        place = colour.place((7,))
        found = cache_store.read(place)
        assert cache_store.lead(place, found.revision, "another's", seconds=5) == 1

        with transaction.atomic():
            assert colour.get(7) == "old"

        assert source.loads == 1

    def test_sees_what_it_has_written_beside_a_load_that_does_not(self, declare):
        inside, leave, seen = threading.Event(), threading.Event(), []

        def load(*parts):
            if threading.current_thread() is reader:
                inside.set()
                leave.wait(5)
                return "old"
            return "mine"

        exact = declare("tests:exact", load, strict=True)
        reader = threading.Thread(target=lambda: seen.append(exact.get(7)))
        cache_writers.about_to_change(["tests:exact:7"], writer="one", seconds=0)
        reader.start()
        inside.wait(5)

        with transaction.atomic():
            assert exact.get(7) == "mine"
        leave.set()
        reader.join(5)

        assert seen == ["old"]


class TestFork:
    def test_leaves_no_lock_of_the_parent_held(self, colour):
        """A thread of the parent is in the middle of things when it forks."""
        colour.get(7)
        held = [cache_rebuild.flights._lock, cache_rebuild.breaker._lock, cache_books.book._lock]
        held += [cache._background._lock, cache_flights.chores._lock]
        for lock in held:
            lock.acquire()
        child = os.fork()
        if not child:  # nothing may rise here: it would go on as pytest
            threading.Timer(2, os._exit, [3]).start()
            os._exit(colour.get(7) != "old" or not cache._background.do("x", int))
        for lock in held:
            lock.release()

        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    def test_brings_no_flight_without_its_thread_along(self, colour):
        begun, leave = threading.Event(), threading.Event()
        load = lambda: begun.set() or leave.wait(10)  # noqa: E731
        share = partial(cache_rebuild.flights.share, "x", wait_seconds=10)
        threading.Thread(target=lambda: share(load), daemon=True).start()
        begun.wait(5)

        child = os.fork()
        if not child:  # nothing may rise here: it would go on as pytest
            threading.Timer(2, os._exit, [3]).start()
            os._exit(cache_rebuild.flights.share("x", lambda: 7, wait_seconds=1) != 7)
        leave.set()

        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class TestInvalidate:
    def test_makes_the_next_read_load(self, colour, source):
        colour.get(7)
        source.value = "new"

        cache_writers.invalidate([NAME])

        assert [colour.get(7), colour.get(7)] == ["new", "new"]
        assert source.loads == 2

    def test_leaves_the_others_alone(self, colour, source):
        colour.get(7)
        source.value = "new"

        cache_writers.invalidate(["tests:colour:8"])

        assert colour.get(7) == "old"

    def test_makes_all_variants_stale(self, source, declare):
        page = declare("tests:page", source.load, variants=("number", "order"))
        shown = [(7, 1, "up"), (7, 2, "up"), (8, 1, "up")]
        for each in shown:
            page.get(*each)
        source.value = "new"

        cache_writers.invalidate(["tests:page:7"])

        assert [page.get(*each) for each in shown] == ["new", "new", "old"]

    def test_is_not_undone_by_a_reader_that_loaded_before(self, source, declare):
        def load_slowly(*parts):
            """Read the old value; meanwhile a writer commits and invalidates."""
            seen = source.load()
            if source.value == "old":
                source.value = "new"
                cache_writers.invalidate([NAME])
            return seen

        colour = declare("tests:colour", load_slowly)

        assert colour.get(7) == "old"  # the slow reader's own answer
        assert colour.get(7) == "new"

    def test_is_not_undone_by_a_flush(self, colour, source, lose_redis):
        colour.get(7)
        source.value = "new"
        cache_writers.invalidate([NAME])

        lose_redis()

        assert colour.get(7) == "new"

    def test_may_come_before_the_first_read(self, colour):
        cache_writers.invalidate([NAME])

        assert colour.get(7) == "old"

    def test_makes_all_that_it_names_stale_at_once(self, declare, source, monkeypatch):
        """A reader between two of them would build the outer of an inner that is old."""
        inner = declare("tests:inner", source.load)
        outer = declare("tests:outer", lambda id: [inner.get(id)])
        outer.get(7)
        source.value = "new"  # committed
        told, real = [], cache_store.script

        def script(*what):
            done = real(*what)
            if what[0] == INVALIDATE and not told:
                told.append(what)
                outer.get(7)
            return done

        monkeypatch.setattr(cache_store, "script", script)
        cache_writers.invalidate(["tests:outer:7", "tests:inner:7"])

        assert (inner.get(7), outer.get(7)) == ("new", ["new"])

    def test_says_that_it_could_not(self, cache_away):
        with pytest.raises(RedisError):
            cache_writers.invalidate([NAME])


class TestSoft:
    @pytest.fixture
    def shade(self, source, declare):
        return declare("tests:shade", source.load, soft_seconds=0.05, jitter=0.0)

    def test_is_served_at_once_and_rebuilt_meanwhile(self, shade, source):
        shade.get(7)
        source.value = "new"
        change(shade, load=lambda *parts: time.sleep(1) or source.load())
        time.sleep(0.1)

        began = time.monotonic()
        stale = shade.get(7)
        took = time.monotonic() - began

        until(lambda: source.loads == 2)
        until(lambda: shade.get(7) == "new")
        assert (stale, took < 0.5) == ("old", True)

    def test_is_kept_when_the_rebuild_fails_and_not_tried_at_once_again(self, shade, source):
        shade.get(7)
        tries = []
        change(shade, load=lambda *parts: tries.append(parts) or 1 / 0)
        time.sleep(0.1)

        for _ in range(10):
            assert shade.get(7) == "old"
            time.sleep(0.02)

        assert len(tries) == 1

    def test_ends_with_an_error_at_the_hard_limit(self, source, declare):
        brief = declare("tests:brief", source.load, ttl_seconds=0.3, absent_seconds=0.1, jitter=0.0)
        brief.get(7)
        change(brief, load=lambda *parts: 1 / 0)
        time.sleep(0.35)

        with pytest.raises(Unavailable):
            brief.get(7)

    def test_is_not_rebuilt_by_a_process_that_sees_another_do_it(self, shade, source, monkeypatch):
        shade.get(7)
        place = shade.place((7,))
        found = cache_store.read(place)
        assert cache_store.lead(place, found.revision, "another's", seconds=5) == 1
        asked = []
        monkeypatch.setattr(cache._background, "do", lambda name, work: asked.append(name))
        time.sleep(0.1)

        assert shade.get(7) == "old"
        assert asked == []


class TestOrders:
    def test_make_a_value_stale_sooner(self, colour, source):
        colour.get(7)
        source.value = "new"
        cache_orders.orders._known = {"tests:colour": Order(soft_seconds=0.001, jitter=0.0)}
        time.sleep(0.01)

        assert colour.get(7) == "old"
        until(lambda: colour.get(7) == "new")

    def test_let_nothing_stale_be_served(self, colour, source):
        colour.get(7)
        source.value = "new"
        order = Order(soft_seconds=0.02, jitter=0.0, revalidate=False)
        cache_orders.orders._known = {"tests:colour": order}
        time.sleep(0.03)

        assert colour.get(7) == "new"

    def test_stretch_times_by_another_jitter(self, colour):
        cache_orders.orders._known = {"tests:colour": Order(jitter=1.0)}

        kept = [colour.kept_seconds(absent=False)[0] for _ in range(200)]

        assert min(kept) >= 60
        assert 90 < max(kept) <= 120

    @pytest.mark.django_db(transaction=True)
    def test_are_looked_for_now_and_then(self, colour):
        order = Order(soft_seconds=3.0)
        cache_orders.change("tests:colour", lambda before: order, actor="ayu", reason="a sale")
        cache_orders.orders.look_at = 0.0

        until(lambda: colour.fresh_seconds == 3.0)

        assert cache_orders.orders.look_at > time.monotonic()


class TestAbsent:
    def test_is_cached_and_briefly(self, source, declare):
        source.value = ABSENT
        gone = declare("tests:gone", source.load, absent_seconds=0.2, jitter=0.0)

        assert [gone.get(7), gone.get(7)] == [ABSENT, ABSENT]
        assert source.loads == 1
        time.sleep(0.3)
        source.value = "there"
        assert gone.get(7) == "there"


class TestUnreadable:
    @pytest.mark.parametrize(
        "text",
        [
            "{",
            "[]",
            '"x"',
            "{}",
            "\x80",
            b"\x80\x04\x95",  # a pickle
            '{"of": "tests:colour:8", "kept": 60, "roll": 0, "value": 1}',
            '{"of": "tests:colour:7", "kept": 60, "roll": 0}',
            pytest.param("[" * 100_000, id="deep"),
            pytest.param(
                '{"of": "tests:colour:7", "kept": 1' + "0" * 400 + ', "roll": 0, "value": 1}', id="large"
            ),
        ],
    )
    def test_is_a_miss_that_is_counted_and_overwritten(self, colour, source, text, counted):
        colour.get(7)
        place = colour.place((7,))
        key = place.value(cache_store.read(place).revision)
        cache_store.client().set(key, text)

        with counted("ops_cache_unreadable_total", cache="tests:colour") as grown:
            assert [colour.get(7), colour.get(7)] == ["old", "old"]

        assert source.loads == 2
        assert grown() == 1

    def test_is_what_another_schema_has_stored(self, colour, source, declare):
        colour.get(7)

        declare("tests:colour", source.load, schema=2).get(7)

        assert source.loads == 2


class TestKeys:
    def test_are_readable_and_of_one_length(self, colour, settings, declare):
        place = declare("tests:long", str).place(("x" * 10_000,))
        colour.get(7)

        beginning = f"{settings.KEY_PREFIX}:value:tests:long:"
        assert place.value("r").startswith(beginning)
        assert len(place.value("r")) == len(beginning) + len("0" * 32 + ":1:r")

    def test_cannot_be_met_by_djangos_own(self, colour):
        colour.get(7)

        assert caches["default"].get(NAME) is None


class TestJitter:
    def test_spreads_what_was_filled_together(self, source, declare):
        many = declare("tests:many", source.load, ttl_seconds=100, jitter=0.3)
        for number in range(1_000):
            many.get(number)

        client = cache_store.client()
        left = [client.pttl(key) / 1_000 for key in cache_store.keys_of("value", "tests:many")]
        assert len(left) == 1_000
        assert max(left) - min(left) >= 20  # a fifth of the time

    def test_lets_nothing_live_longer_than_an_hour(self, declare, monkeypatch):
        monkeypatch.setattr(cache_rebuild, "roll", lambda: 1.0)
        long = declare("tests:long", str, ttl_seconds=3_600, jitter=1.0)

        assert long.kept_seconds(absent=False)[0] == cache_store.LONGEST_SECONDS


class TestNames:
    def test_of_templates_are_those_of_parts(self):
        values = {"user": "a:b%", "n": 7}

        assert cache_names.filled("shop:page:{user}:{n:03}", values) == cache_names.name_of(
            "shop:page", ["a:b%", "007"]
        )

    @pytest.mark.parametrize("parts", [["a:b"], ["%3A"], ["%253A", "x"], ["", ""], ["ü"]])
    def test_tell_their_parts(self, parts):
        assert cache_names.parts_of(cache_names.name_of("shop:page", parts)) == parts

    def test_may_hold_any_text(self, colour):
        assert [colour.get("\ud800"), colour.get("\ud800")] == ["old", "old"]
