"""Cached values: fresh after a commit whatever slow readers do, and not in the way when the cache is away."""

import os
import signal
import socket
import threading
import time
from contextlib import contextmanager

import pytest
from django.core.cache import caches
from django.db import transaction
from prometheus_client.registry import REGISTRY
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeout

from operations import (
    cache,
    cache_books,
    cache_breaker,
    cache_flights,
    cache_leads,
    cache_names,
    cache_orders,
    cache_rebuild,
    cache_store,
)
from operations.cache import ABSENT, Unavailable, UnsafeCache
from operations.cache_breaker import Breaker
from operations.cache_leads import leads
from operations.cache_orders import Order
from operations.cache_scripts import READ, STORE
from operations.models import AfterCommit
from tasks import relay
from tests.factories import make_operation
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


def change(cached, **attributes):
    for name, value in attributes.items():
        object.__setattr__(cached, name, value)


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
        cache.about_to_change(["tests:exact:7"], writer="one", seconds=0)
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
        if not child:  # pragma: no cover
            signal.alarm(5)
            os._exit(colour.get(7) != "old" or not cache._background.do("x", int))
        for lock in held:
            lock.release()

        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class TestInvalidate:
    def test_makes_the_next_read_load(self, colour, source):
        colour.get(7)
        source.value = "new"

        cache.invalidate(NAME)

        assert [colour.get(7), colour.get(7)] == ["new", "new"]
        assert source.loads == 2

    def test_leaves_the_others_alone(self, colour, source):
        colour.get(7)
        source.value = "new"

        cache.invalidate("tests:colour:8")

        assert colour.get(7) == "old"

    def test_makes_all_variants_stale(self, source, declare):
        page = declare("tests:page", source.load, variants=("number", "order"))
        shown = [(7, 1, "up"), (7, 2, "up"), (8, 1, "up")]
        for each in shown:
            page.get(*each)
        source.value = "new"

        cache.invalidate("tests:page:7")

        assert [page.get(*each) for each in shown] == ["new", "new", "old"]

    def test_is_not_undone_by_a_reader_that_loaded_before(self, source, declare):
        def load_slowly(*parts):
            """Read the old value; meanwhile a writer commits and invalidates."""
            seen = source.load()
            if source.value == "old":
                source.value = "new"
                cache.invalidate(NAME)
            return seen

        colour = declare("tests:colour", load_slowly)

        assert colour.get(7) == "old"  # the slow reader's own answer
        assert colour.get(7) == "new"

    def test_is_not_undone_by_a_flush(self, colour, source, lose_redis):
        colour.get(7)
        source.value = "new"
        cache.invalidate(NAME)

        lose_redis()

        assert colour.get(7) == "new"

    def test_may_come_before_the_first_read(self, colour):
        cache.invalidate(NAME)

        assert colour.get(7) == "old"

    def test_says_that_it_could_not(self, cache_away):
        with pytest.raises(RedisError):
            cache.invalidate(NAME)


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
            away.setattr(cache, "_settle", lambda *owed: None)  # the process dies after its COMMIT
            colour.invalidate_after_commit(7)
            source.value = "new"
            transaction.get_connection().run_on_commit.clear()
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

    def test_needs_a_transaction(self, colour):
        with pytest.raises(AssertionError, match="no transaction is open"):
            colour.invalidate_after_commit(7)


class TestRestart:
    """A server that was started anew may have read old keys from its disk."""

    def test_brings_nothing_old_back(self, colour, source):
        colour.get(7)
        place = colour.place((7,))
        client, pool = cache_store.client(), cache_store.client().connection_pool
        kept = {key: client.get(key) for key in client.scan_iter(f"*{place.name[:12]}*")}
        source.value = "new"
        cache.invalidate(NAME)

        client.mset(kept)  # as from a snapshot
        assert colour.get(7) == "old"  # that is what the guard is for: without a new run, they count
        pool.run = "another1"  # what is told to a new connection

        assert colour.get(7) == "new"

    def test_is_noticed_by_who_connects_anew(self, colour):
        colour.get(7)
        pool = cache_store.client().connection_pool
        told = cache_store.client().info("server")["run_id"]
        pool.run = "another1"
        pool.disconnect()

        colour.get(7)

        assert pool.run == told[:8]

    def test_is_not_what_the_first_read_of_a_process_waits_for(self, colour, source):
        """It learns of the run while it reads, and reads again: the lead is its own already."""
        pool = cache_store.client().connection_pool
        pool.run = ""
        pool.disconnect()

        began = time.monotonic()
        assert colour.get(7) == "old"

        assert time.monotonic() - began < 1
        assert source.loads == 1

    def test_in_the_middle_of_a_read_makes_it_read_again(self, colour, monkeypatch):
        colour.get(7)
        pool, runs = cache_store.client().connection_pool, []
        monkeypatch.setattr(cache_store, "script", lambda *asked: runs.append(pool.run) or met(asked))

        def met(asked):
            pool.run = "another1"
            return b"nonce", 0, None, 0, 0

        cache_store.read(colour.place((7,)))

        assert len(runs) == 2
        assert runs[1] == "another1"

    def test_over_and_over_is_a_cache_that_is_away(self, colour, source, monkeypatch):
        pool = cache_store.client().connection_pool

        def script(*asked):
            pool.run += "x"
            return b"nonce", 0, None, 0, 0

        monkeypatch.setattr(cache_store, "script", script)

        assert colour.get(7) == "old"
        pool.run = ""


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


class TestStrict:
    @pytest.fixture
    def exact(self, source, declare):
        return declare("tests:exact", source.load, strict=True)

    def warn(self, writer="one", seconds=0.0):
        cache.about_to_change(["tests:exact:7"], writer=writer, seconds=seconds)

    def test_is_not_served_old_by_a_writer_that_died_after_its_commit(self, exact, source):
        exact.get(7)
        self.warn()
        source.value = "new"  # it is committed, and nobody invalidates

        assert [exact.get(7), exact.get(7)] == ["new", "new"]

    def test_is_cached_again_after_the_invalidation(self, exact, source):
        exact.get(7)
        self.warn()
        cache.invalidate("tests:exact:7", writer="one")

        assert [exact.get(7), exact.get(7)] == ["old", "old"]
        assert source.loads == 2

    def test_is_cached_again_when_its_writer_has_changed_nothing(self, exact, source):
        self.warn()
        cache.unchanged(["tests:exact:7"], writer="one")

        assert [exact.get(7), exact.get(7)] == ["old", "old"]
        assert source.loads == 1

    def test_waits_for_each_of_two_writers(self, exact, source):
        self.warn("one")
        self.warn("other")
        cache.invalidate("tests:exact:7", writer="one")
        exact.get(7)
        source.value = "new"  # the other commits, and dies

        assert exact.get(7) == "new"

    def test_is_not_what_a_slow_reader_loaded_when_the_mark_ends(self, exact, source, monkeypatch):
        monkeypatch.setattr(cache, "MARK_SECONDS", 0.05)

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
        monkeypatch.setattr(cache, "MARK_SECONDS", 0.1)
        self.warn("dead")
        time.sleep(0.15)
        self.warn("one", seconds=10)
        cache.invalidate("tests:exact:7", writer="one")

        assert not cache_store.read(exact.place((7,))).is_marked

    def test_is_marked_for_as_long_as_the_commit_may_take(self, exact):
        self.warn(seconds=100)

        left = cache_store.client().pttl(exact.place((7,)).marks) / 1_000
        assert 100 + cache.MARK_SECONDS - 1 < left <= 100 + cache.MARK_SECONDS

    def test_marks_no_other_kind(self, colour, source):
        colour.get(7)
        cache.about_to_change([NAME], writer="one", seconds=0)

        colour.get(7)
        assert source.loads == 1


@pytest.mark.django_db(transaction=True)
class TestBreaker:
    @pytest.fixture(autouse=True)
    def at_once(self, monkeypatch):
        monkeypatch.setattr(cache_breaker, "LOOK_SECONDS", 0.0)
        monkeypatch.setattr(cache_breaker, "PAUSE_SECONDS", 0.0)

    def test_leaves_a_cache_alone_that_does_not_answer(self, colour, monkeypatch, cache_away):
        monkeypatch.setattr(cache_breaker, "PAUSE_SECONDS", 60.0)
        for _ in range(cache_breaker.FAILURES):
            colour.get(7)
        asked = []
        monkeypatch.setattr(cache_store, "script", lambda *what: asked.append(what))

        assert colour.get(7) == "old"
        assert asked == []

    def test_is_not_opened_by_failures_that_are_not_in_a_row(self, colour, monkeypatch):
        tried = Breaker()
        for _ in range(cache_breaker.FAILURES):
            with pytest.raises(OSError, match="x"):
                tried.guard(lambda: (_ for _ in ()).throw(OSError("x")))
            tried.guard(int)

        assert not tried.bypasses()

    def test_asks_again_after_a_pause_and_nobody_waits_for_that(self, colour, settings):
        breaker = cache_rebuild.breaker
        breaker._open()
        assert breaker.bypasses()

        until(lambda: not breaker.bypasses())

    def test_stays_away_from_a_cache_that_is_still_away(self, cache_away):
        breaker = cache_rebuild.breaker
        breaker._open()
        breaker.look()

        assert breaker.is_open

    def test_does_not_believe_what_may_have_missed_an_invalidation(self, colour, source):
        breaker = cache_rebuild.breaker
        colour.get(7)
        source.value = "new"  # committed while the cache was away: the relay owes it
        owed = AfterCommit.objects.create(
            operation=make_operation(), invalidate=[NAME], tries=0, run_at="2000-01-01T00:00:00Z"
        )
        breaker._open()

        breaker.look()
        assert breaker.is_open
        assert colour.get(7) == "new"

        cache.invalidate(NAME)
        owed.delete()
        breaker.look()
        assert not breaker.is_open
        assert colour.get(7) == "new"

    def test_doubts_anew_a_cache_that_went_away_while_it_was_doubted(self, monkeypatch):
        breaker = cache_rebuild.breaker
        breaker._open()
        owed = AfterCommit.objects.create(invalidate=[NAME], run_at="2000-01-01T00:00:00Z")
        breaker.look()
        with monkeypatch.context() as away:
            away.setattr(cache_store, "answers", lambda: (_ for _ in ()).throw(OSError))
            breaker.look()
        owed.delete()
        later = AfterCommit.objects.create(invalidate=[NAME], run_at="2000-01-01T00:00:00Z")

        breaker.look()

        assert breaker.is_open
        later.delete()

    def test_is_not_looked_after_by_two_at_once(self, monkeypatch):
        asked = []
        monkeypatch.setattr(cache_breaker.chores, "do", lambda name, work: asked.append(name))
        monkeypatch.setattr(cache_breaker, "PAUSE_SECONDS", 60.0)
        cache_rebuild.breaker._open()

        assert cache_rebuild.breaker.bypasses()
        assert asked == []


class TestNames:
    def test_of_templates_are_those_of_parts(self):
        values = {"user": "a:b%", "n": 7}

        assert cache_names.filled("shop:page:{user}:{n:03}", values) == cache_names.name_of(
            "shop:page", ["a:b%", "007"]
        )

    @pytest.mark.parametrize("parts", [["a:b"], ["%3A"], ["%253A", "x"], ["", ""], ["ü"]])
    def test_tell_their_parts(self, parts):
        assert cache_names.parts_of(cache_names.name_of("shop:page", parts)) == parts
