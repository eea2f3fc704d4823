"""One canary a queue: the next when the last has come through, or its queue has forgotten it."""

import uuid
from datetime import timedelta

import pytest
from django.db import OperationalError
from django.db.models import F
from django.utils import timezone

from config.celery import app
from operations import jobs, metrics, statements
from operations.models import Canary, Operation
from operations.publish import BrokerAway, publisher
from tasks import canary
from tests.threads import lose_connection

pytestmark = pytest.mark.django_db(transaction=True)

QUEUES = {*(job.name for job in jobs.every()), "dead_letter"}
PERIOD = timedelta(seconds=60)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Look each time: how often a process looks is no matter here."""
    monkeypatch.setattr(canary, "_look_at", 0.0)
    monkeypatch.setattr(canary, "LOOKS", float("inf"))


def a_period_later():
    Canary.objects.update(sent_at=F("sent_at") - PERIOD, answered_at=F("answered_at") - PERIOD)


def answer(broker, queue="inventory.sync"):
    """Do what a worker does with the canary that waits first."""
    app.tasks[canary.SING].run(*broker.deliver(queue).payload[0])


class TestSend:
    def test_sends_one_through_every_queue(self, broker):
        assert canary.send() == len(QUEUES)

        assert {queue: broker.depth(queue) for queue in QUEUES} == dict.fromkeys(QUEUES, 1)
        assert Operation.objects.count() == 0

    def test_sends_the_next_when_a_period_is_over(self, broker):
        canary.send()
        answer(broker)

        assert canary.send() == 0
        a_period_later()
        assert canary.send() == 1

    def test_adds_none_to_a_queue_in_which_one_waits(self, broker):
        canary.send()
        for _ in range(3):
            a_period_later()
            assert canary.send() == 0

        assert broker.depth() == 1

    def test_gives_one_up_that_is_not_back_after_ten_periods(self, broker):
        canary.send()
        for _ in range(canary.GIVEN_UP_PERIODS + 1):
            a_period_later()

        assert canary.send() == len(QUEUES)
        assert broker.depth() == 2

    def test_sends_again_at_once_what_could_not_be_sent(self, broker, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr(publisher, "send", lambda hint: False)
            assert canary.send() == 0

        assert canary.send() == len(QUEUES)

    def test_asks_nothing_of_a_queue_that_nobody_serves_any_more(self, broker, monkeypatch):
        canary.send()
        Canary.objects.create(queue="tests.gone", token=uuid.uuid4(), sent_at=timezone.now() - PERIOD * 2)
        asked = []
        monkeypatch.setattr(publisher, "depth", lambda queue: asked.append(queue) or 1)
        a_period_later()

        canary.send()

        assert set(asked) == QUEUES

    def test_sends_another_when_the_queue_has_lost_it(self, broker):
        canary.send()
        broker.flush()

        assert canary.send() == 0
        a_period_later()
        assert canary.send() == len(QUEUES)

    def test_sends_none_while_the_broker_is_away(self, monkeypatch, broker):
        canary.send()
        a_period_later()

        def hang(queue):
            raise BrokerAway

        monkeypatch.setattr(publisher, "depth", hang)
        with pytest.raises(BrokerAway):
            canary.send()

    def test_sends_none_if_the_period_is_nought(self, settings, broker):
        settings.CANARY_PERIOD_SECONDS = 0.0

        assert canary.send() == 0
        assert Canary.objects.count() == 0

    def test_shows_when_one_last_came_through(self, broker):
        canary.send()
        answer(broker)

        canary.send()

        seen = metrics.CANARY_LAST_SUCCESS.labels("inventory.sync")._value.get()
        answered = Canary.objects.get(queue="inventory.sync").answered_at
        assert seen == pytest.approx(answered.timestamp(), abs=0.001)


class TestSing:
    def test_speaks_for_the_last_one_only(self, broker):
        """One that was lost and found again says nothing of the queue as it is now."""
        canary.send()
        late = broker.deliver().payload[0]
        a_period_later()
        canary.send()

        app.tasks[canary.SING].run(*late)

        assert Canary.objects.get(queue="inventory.sync").answered_at is None

    def test_is_quiet_while_the_database_is_away(self, broker, monkeypatch):
        canary.send()

        def refuse(sql, values):
            raise OperationalError

        with monkeypatch.context() as patch:
            patch.setattr(statements, "row", refuse)
            answer(broker)

        assert Canary.objects.get(queue="inventory.sync").answered_at is None

    def test_meets_a_dead_connection(self, broker):
        canary.send()
        lose_connection()

        answer(broker)

        assert Canary.objects.get(queue="inventory.sync").answered_at is not None
