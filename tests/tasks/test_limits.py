"""A run's time is up, whatever its code catches; and before and after it, nothing is stopped."""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from tasks.limits import soft_limit
from tasks.retry import SoftLimitPassed

FOR_EVER = 10.0  # seconds; a test that waits so long has failed


class TestSoftLimit:
    def test_stops_what_takes_too_long(self):
        with pytest.raises(SoftLimitPassed), soft_limit(0.05):
            threading.Event().wait(FOR_EVER)

    def test_is_not_swallowed_by_code_that_catches_everything(self):
        def stubborn():
            for _ in range(100):
                with suppress(Exception):
                    threading.Event().wait(FOR_EVER)

        with pytest.raises(SoftLimitPassed), soft_limit(0.05):
            stubborn()

    def test_leaves_alone_what_ends_in_time(self):
        with soft_limit(FOR_EVER):
            done = True

        assert done
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0

    @pytest.mark.parametrize("seconds", [0, -1.5])
    def test_does_not_begin_when_the_time_is_over(self, seconds):
        begun = []

        with pytest.raises(SoftLimitPassed), soft_limit(seconds):
            begun.append(True)

        assert not begun

    def test_gives_the_signal_back(self):
        before = signal.getsignal(signal.SIGALRM)

        with soft_limit(FOR_EVER):
            pass

        assert signal.getsignal(signal.SIGALRM) == before

    def test_gives_the_signal_back_after_an_error(self):
        before = signal.getsignal(signal.SIGALRM)

        with pytest.raises(ZeroDivisionError), soft_limit(FOR_EVER):
            1 / 0  # noqa: B018

        assert signal.getsignal(signal.SIGALRM) == before
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0

    def test_stands_aside_where_signals_do_not_reach(self):
        def in_a_thread():
            with soft_limit(FOR_EVER):
                return "done"

        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(in_a_thread).result(FOR_EVER) == "done"
