"""One load of a thing at a time, and none that began too early for who must see the last commit."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from operations import cache_flights
from operations.cache_flights import Background, Crowded, Flights, Room
from tasks.retry import SoftLimitPassed
from tests.threads import until

PATIENT = 5.0


class Load:
    """A load that goes on until it is let."""

    def __init__(self):
        self.begun, self.may_end = threading.Semaphore(0), threading.Semaphore(0)
        self.loads = 0

    def __call__(self):
        self.loads += 1
        mine = self.loads
        self.begun.release()
        assert self.may_end.acquire(timeout=PATIENT)
        return mine


def ask(flights, load, *, exact, name="x", wait_seconds=PATIENT):
    """Share a load in a thread of its own; give where its end is told."""
    told = []

    def share():
        try:
            told.append(flights.share(name, load, wait_seconds=wait_seconds, exact=exact))
        except Exception as error:
            told.append(error)

    threading.Thread(target=share, daemon=True).start()
    return told


class TestShare:
    def test_lets_those_who_come_meanwhile_have_the_same(self):
        flights, load = Flights(), Load()
        first = ask(flights, load, exact=False)
        load.begun.acquire()
        others = [ask(flights, load, exact=False) for _ in range(3)]
        time.sleep(0.05)
        load.may_end.release()

        until(lambda: first and all(others))
        assert [first, *others] == [[1]] * 4

    def test_gives_exact_readers_no_load_that_began_before_them(self):
        flights, load = Flights(), Load()
        first = ask(flights, load, exact=True)
        load.begun.acquire()
        others = [ask(flights, load, exact=True) for _ in range(3)]
        time.sleep(0.05)
        load.may_end.release()
        load.begun.acquire()
        late = ask(flights, load, exact=True)
        load.may_end.release(2)

        until(lambda: first and all(others) and late)
        assert first == [1]
        assert others == [[2]] * 3  # one load for all of them, which began after they had asked
        assert late == [3]

    def test_raises_for_all_what_the_load_raises(self):
        flights = Flights()

        with pytest.raises(ZeroDivisionError):
            flights.share("x", lambda: 1 / 0, wait_seconds=1)

        assert flights.share("x", lambda: 7, wait_seconds=1) == 7

    def test_waits_for_no_load_longer_than_it_may(self):
        flights, load = Flights(), Load()
        ask(flights, load, exact=False)
        load.begun.acquire()

        for exact in (False, True):
            with pytest.raises(Crowded):
                flights.share("x", load, wait_seconds=0.05, exact=exact)
        load.may_end.release()


class TestRoom:
    def test_is_for_a_few_at_once(self, monkeypatch):
        monkeypatch.setattr(cache_flights, "AT_ONCE", 2)
        room, inside, leave = Room(), threading.Semaphore(0), threading.Event()

        def stay():
            with room.hold(1):
                inside.release()
                leave.wait(PATIENT)

        threads = [threading.Thread(target=stay) for _ in range(2)]
        for thread in threads:
            thread.start()
            inside.acquire()

        with pytest.raises(Crowded), room.hold(0.05):
            pass
        leave.set()
        with room.hold(1), room.hold(0):  # a load that needs another cached value
            pass
        for thread in threads:
            thread.join()


class TestBackground:
    def test_does_a_thing_that_waits_already_once(self):
        background, load = Background(threads=1), Load()
        assert background.do("x", load)
        load.begun.acquire()

        assert not background.do("x", load)
        load.may_end.release()
        until(lambda: background.do("x", int))

    def test_takes_no_more_than_it_has_room_for(self, monkeypatch):
        monkeypatch.setattr(cache_flights, "MOST_WAITING", 2)
        background, load = Background(threads=1), Load()

        assert [background.do(name, load) for name in "abc"] == [True, True, False]
        load.may_end.release(2)

    def test_does_nothing_more_in_a_process_that_ends(self):
        background = Background(threads=1)
        background.do("x", int)
        background._pool.shutdown()

        assert not background.do("y", int)

    def test_does_later_what_no_thread_was_to_be_had_for(self, monkeypatch):
        background = Background(threads=1)
        with monkeypatch.context() as patch:
            patch.setattr(ThreadPoolExecutor, "submit", lambda *what: (_ for _ in ()).throw(RuntimeError))
            assert not background.do("x", int)

        assert background.do("x", int)

    def test_tells_of_what_fails_and_goes_on(self, caplog):
        background, done = Background(threads=1), []

        background.do("x", lambda: 1 / 0)
        until(lambda: "cache.not_done" in caplog.text)

        assert background.do("x", lambda: done.append(1))
        until(lambda: done)


class TestSoftLimit:
    """SIGALRM raises anywhere in the main thread of a worker."""

    def test_leaves_no_flight_behind_for_ever(self, monkeypatch):
        flights = Flights()
        with monkeypatch.context() as patch:
            # it comes between the entry and the try
            patch.setattr(
                cache_flights.time, "monotonic", lambda: (_ for _ in ()).throw(SoftLimitPassed("now"))
            )
            with suppress(SoftLimitPassed):
                flights.share("x", int, wait_seconds=1)

        assert flights.share("x", lambda: 7, wait_seconds=0.2) == 7

    def test_leaves_no_place_taken_for_ever(self, monkeypatch):
        monkeypatch.setattr(cache_flights, "AT_ONCE", 1)
        room = Room()

        class Mine:
            is_held = False

            def __setattr__(self, name, value):
                if value:
                    raise SoftLimitPassed("now")

        room._mine = Mine()
        with suppress(SoftLimitPassed), room.hold(1):
            pass
        room._mine = threading.local()

        with room.hold(0.2):
            pass

    def test_lets_nobody_wait_for_ever_for_a_leader_that_it_has_stopped(self, monkeypatch):
        flights = Flights()
        monkeypatch.setattr(flights, "_fly", lambda *what: (_ for _ in ()).throw(SoftLimitPassed("now")))
        with suppress(SoftLimitPassed):
            flights.share("x", int, wait_seconds=0.05)
        monkeypatch.undo()
        time.sleep(0.1)

        assert flights.share("x", lambda: 7, wait_seconds=0.2) == 7
