"""One hint for many: what was accepted with no message of its own is not left to the relay."""

import threading
import time

import pytest

from operations import reminders
from operations.publish import publish, publisher
from operations.reminders import Reminders
from tests.factories import make_operation
from tests.faults.lab import eventually

pytestmark = pytest.mark.django_db(transaction=True)

QUEUE = "inventory.sync"
A_WHILE = 4 * reminders.PAUSE_SECONDS


@pytest.fixture
def full(broker, settings):
    """A queue with as many messages as make plenty, all sent from here."""
    settings.PLENTY_OF_MESSAGES = 2
    for _ in range(2):
        publish(make_operation())
    assert publisher.has_plenty(QUEUE)
    return broker


@pytest.fixture
def owing():
    owing = Reminders()
    yield owing
    owing.forget()


def reminded(broker):
    return [message for message in broker.messages(QUEUE) if message["headers"].get("more")]


def empty(broker):
    for _ in range(2):
        broker.deliver(QUEUE)


class TestOwe:
    def test_sends_one_hint_for_many_once_the_queue_is_short(self, owing, full):
        for operation in (make_operation(published_at=None) for _ in range(5)):
            owing.owe(operation)

        empty(full)

        eventually(lambda: full.depth() == 1, what="the reminder", within=2.0)
        time.sleep(A_WHILE)
        assert (full.depth(), len(reminded(full))) == (1, 1)

    def test_sends_none_while_plenty_wait(self, owing, full):
        owing.owe(make_operation(published_at=None))

        time.sleep(A_WHILE)

        assert (full.depth(), reminded(full)) == (2, [])

    def test_leaves_it_to_the_relay_after_its_period(self, owing, full, settings):
        settings.RELAY_PERIOD_SECONDS = 0.0
        owing.owe(make_operation(published_at=None))
        time.sleep(A_WHILE)

        empty(full)

        time.sleep(A_WHILE)
        assert full.depth() == 0
        assert owing._thread is None

    def test_begins_again_after_it_has_rested(self, owing, broker):
        for count in (1, 2):
            owing.owe(make_operation(published_at=None))
            eventually(lambda: broker.depth() == count, what="a reminder", within=2.0)  # noqa: B023 (called here)
            eventually(lambda: owing._thread is None, what="its rest", within=2.0)

    def test_reminds_each_queue(self, owing, broker):
        owing.owe(make_operation(published_at=None))
        owing.owe(make_operation(published_at=None, job_type="tests.other"))

        eventually(lambda: broker.depth() + broker.depth("tests.other") == 2, what="both", within=2.0)

    def test_does_not_mind_a_broker_that_is_away(self, owing, broker_away):
        owing.owe(make_operation(published_at=None))

        eventually(lambda: owing._thread is None, what="its rest", within=5.0)

    def test_begins_again_when_its_thread_has_died(self, owing, broker):
        owing._thread = threading.Thread(target=lambda: None)
        owing._thread.start()
        owing._thread.join()

        owing.owe(make_operation(published_at=None))

        eventually(lambda: broker.depth() == 1, what="the reminder", within=2.0)


class TestFork:
    def test_leaves_the_child_nothing_to_remind_of(self, owing):
        owing._owed["tests.other"] = None
        owing._thread = threading.Thread()

        owing.forget()

        assert (owing._owed, owing._thread) == ({}, None)
