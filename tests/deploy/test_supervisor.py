import signal

import psutil
import pytest

from deploy.local.stack import Stack
from deploy.local.supervisor import Supervisor

pytestmark = [pytest.mark.process, pytest.mark.embedded]


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def stack(servers, tmp_path):
    with Stack(tmp_path, processes=["provider"], servers=servers, template="template0") as stack:
        yield stack


@pytest.fixture
def clock():
    return Clock()


def kill(process):
    process.kill(signal.SIGKILL)
    psutil.wait_procs([psutil.Process(process.pid)], timeout=5)


def pauses(supervisor, stack, clock, *, deaths):
    """Kill the provider again and again, and give how long it stayed away each time."""
    lengths = []
    for _ in range(deaths):
        kill(stack.process("provider"))
        started = clock.now
        while not supervisor.run_once():
            clock.now += 0.5
        lengths.append(clock.now - started)
    return lengths


class TestRunOnce:
    def test_leaves_the_living_alone(self, stack, clock):
        assert Supervisor(stack, clock).run_once() == []

    def test_starts_the_dead_after_a_pause(self, stack, clock):
        supervisor = Supervisor(stack, clock)
        kill(stack.process("provider"))

        assert supervisor.run_once() == []
        clock.now += 0.5
        assert supervisor.run_once() == ["provider"]

        stack.process("provider").wait_until_ready()
        assert stack.provider.is_up()

    def test_pauses_longer_each_time(self, stack, clock):
        supervisor = Supervisor(stack, clock)

        assert pauses(supervisor, stack, clock, deaths=6) == [0.5, 1, 2, 4, 8, 8]

    def test_pauses_no_longer_than_it_was_told(self, stack, clock):
        supervisor = Supervisor(stack, clock, longest_pause_seconds=1.0)

        assert pauses(supervisor, stack, clock, deaths=4) == [0.5, 1, 1, 1]
