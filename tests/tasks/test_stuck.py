"""When a worker counts as stuck: messages wait, a child has time, and nothing comes in, for several looks."""

from types import SimpleNamespace
from uuid import uuid4

import pytest
from celery.worker import state

from operations.publish import BrokerAway
from tasks import drain, holds, stuck
from tasks.holds import Hold

QUEUE = "inventory.sync"


@pytest.fixture
def held(monkeypatch):
    """What the children hold, to be changed."""
    held = []
    monkeypatch.setattr(holds, "every", lambda: held)
    return held


@pytest.fixture
def watch(held):
    """Give a function that makes the watch of a worker of one slot; what waits is by queue."""
    return lambda **waiting: stuck.Watch([QUEUE, "dead_letter"], slots=1, depth=waiting.__getitem__)


def message(queue):
    return SimpleNamespace(delivery_info={"routing_key": queue})


def looks(watch, *, between=lambda: None):
    """Give what each of enough looks finds; the first one only learns what has been heard so far."""
    found = []
    for _ in range(stuck.LOOKS + 1):
        found.append(watch.look())
        between()
    return found


class TestLook:
    def test_names_the_queue_from_which_nothing_comes(self, watch):
        waiting = watch(**{QUEUE: 1, "dead_letter": 0})

        assert looks(waiting) == [None] * stuck.LOOKS + [QUEUE]

    def test_begins_anew_when_a_message_comes(self, watch):
        waiting = watch(**{QUEUE: 1, "dead_letter": 0})

        assert not any(looks(waiting, between=lambda: stuck.hear(message(QUEUE))))

    def test_does_not_let_one_queue_speak_for_another(self, watch):
        waiting = watch(**{QUEUE: 1, "dead_letter": 0})

        assert looks(waiting, between=lambda: stuck.hear(message("dead_letter")))[-1] == QUEUE

    def test_finds_nothing_while_nothing_waits(self, watch):
        assert not any(looks(watch(**{QUEUE: 0, "dead_letter": 0})))

    def test_finds_nothing_while_no_child_has_time(self, watch, held):
        held.append(Hold(1, uuid4(), 0.0))

        assert not any(looks(watch(**{QUEUE: 1, "dead_letter": 0})))

    def test_blames_no_worker_for_a_broker_that_is_away(self, held):
        def depth(queue):
            raise BrokerAway

        assert not any(looks(stuck.Watch([QUEUE], slots=1, depth=depth)))

    def test_counts_a_pause_of_the_whole_machine_as_one_look(self, watch):
        """Looks are counted, not seconds: who was asleep has heard nothing."""
        waiting = watch(**{QUEUE: 1, "dead_letter": 0})

        assert [waiting.look(), waiting.look()] == [None, None]


class TestEndWorker:
    def test_gives_the_word_first_and_ends_it_if_that_is_not_heard(self, monkeypatch, settings):
        settings.GRACE_SECONDS = 0.0
        said = []
        monkeypatch.setattr(drain, "begin", lambda: said.append("drain"))
        monkeypatch.setattr(state, "should_stop", None)

        stuck.end_worker(QUEUE, end_now=lambda: said.append(f"end, {state.should_stop}"))

        assert said == ["drain", f"end, {stuck.EXIT_CODE}"]
