"""Whose turn it is to count what the broker lacks, and how a loss of all it held is known at once."""

from datetime import timedelta

import pytest
from django.db.models import F
from django.utils import timezone

from operations import statements
from operations.models import BrokerEpoch, Operation
from operations.publish import BrokerAway, publish, publisher
from tasks import epoch, relay
from tests.factories import make_operation

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def call_me(monkeypatch):
    """Give a function that makes this process pass for another relay."""
    return lambda name: monkeypatch.setattr(epoch, "_name", lambda: name)


def hang(queue):
    raise BrokerAway


class TestTakeTurn:
    def test_is_one_relays_from_round_to_round(self, call_me):
        call_me("a/1")
        assert [epoch.take_turn(), epoch.take_turn()] == [True, True]

        call_me("b/2")
        assert epoch.take_turn() is False

    def test_goes_to_another_when_its_relay_is_silent(self, call_me):
        call_me("a/1")
        assert epoch.take_turn()
        BrokerEpoch.objects.update(counted_until=F("counted_until") - timedelta(minutes=1))

        call_me("b/2")
        assert epoch.take_turn()

        call_me("a/1")
        assert epoch.take_turn() is False

    def test_goes_to_another_when_its_relay_cannot_reach_the_broker(self, call_me, monkeypatch):
        call_me("a/1")
        assert epoch.take_turn()
        with monkeypatch.context() as patch:
            patch.setattr(publisher, "depth", hang)
            with pytest.raises(BrokerAway):
                epoch.take_turn()

        call_me("b/2")
        assert epoch.take_turn()

    def test_goes_on_when_the_databases_clock_is_set_back(self, call_me):
        call_me("a/1")
        assert epoch.take_turn()
        BrokerEpoch.objects.update(counted_until=F("counted_until") + timedelta(hours=1))

        call_me("b/2")
        assert epoch.take_turn()

    def test_believes_no_loss_of_the_future(self):
        epoch.take_turn()
        BrokerEpoch.objects.update(since=timezone.now() + timedelta(hours=1))

        assert statements.row(f"SELECT {epoch.SINCE}", {}) == (None,)

    def test_notes_a_loss_once(self, broker):
        assert epoch.take_turn()
        assert BrokerEpoch.objects.get().since is None, "a new broker has lost nothing"
        first = BrokerEpoch.objects.get().value

        broker.flush()
        assert epoch.take_turn()
        assert epoch.take_turn()

        found = BrokerEpoch.objects.get()
        assert found.value != first
        assert found.since is not None
        assert broker.depth(f"epoch.{found.value}") == 1


class TestIsMissing:
    @pytest.fixture
    def look(self, monkeypatch):
        """Give a function that looks at a RabbitMQ of a certain depth, at a certain second."""
        monkeypatch.setattr(epoch, "_missed", None)

        def look(depth, *, at, value="one", on_redis=False):
            monkeypatch.setattr(epoch, "ON_REDIS", on_redis)
            monkeypatch.setattr(epoch.time, "monotonic", lambda: at)
            monkeypatch.setattr(publisher, "depth", lambda queue: depth)
            return epoch._is_missing(value)

        return look

    def test_believes_redis_at_once(self, look):
        assert look(0, at=0.0, on_redis=True) is True

    def test_believes_rabbitmq_when_it_says_so_for_a_while(self, look):
        """Both duties that count ask in one round."""
        assert [look(0, at=at) for at in (0.0, 0.01, 0.9, 1.1)] == [False, False, False, True]

    def test_forgets_what_was_missed_when_it_is_there_again(self, look):
        assert [look(0, at=0.0), look(1, at=1.0), look(0, at=99.0)] == [False, False, False]

    def test_begins_anew_with_another_epoch(self, look):
        assert [look(0, at=0.0), look(0, at=9.0, value="two")] == [False, False]


class TestLoss:
    def test_is_made_good_without_waiting_for_what_may_be_on_its_way(self, broker):
        """What was published before the loss was noticed, a moment ago, is not on its way any more."""
        assert relay.republish_lost() == 0
        operation = make_operation(published_at=timezone.now())
        assert relay.republish_lost() == 0, "a young message may be on its way"

        broker.flush()

        assert relay.republish_lost() == 1
        assert broker.deliver().payload[0] == [str(operation.id)]
        broker.flush()
        assert relay.republish_lost() == 1, "each batch is dated, so the next loss is known again"

    def test_is_not_made_good_twice_by_two_relays_that_count_at_once(self, broker, call_me, monkeypatch):
        """C05: both see that three are missing, and each would send three others."""
        call_me("a/1")
        for operation in [make_operation() for _ in range(6)][:3]:
            assert publish(operation)
        Operation.objects.update(published_at=timezone.now() - timedelta(hours=1))
        sent, count = [], publisher.depth

        def depth(queue):
            counted = count(queue)
            if queue == "inventory.sync" and not sent:
                call_me("b/2")
                sent.append(relay.republish_lost())
                call_me("a/1")
            return counted

        monkeypatch.setattr(publisher, "depth", depth)
        sent.append(relay.republish_lost())

        assert sent == [0, 3]
        assert broker.depth() == 6

    def test_is_not_seen_in_what_another_relay_is_about_to_send(self, broker):
        """Marked and not sent yet: the broker holds one message for two operations, and has lost none."""
        relay.republish_lost()
        sent = make_operation(published_at=timezone.now() - timedelta(hours=1))
        assert relay.publish(sent)
        make_operation(published_at=timezone.now())

        assert relay.republish_lost() == 0
        assert broker.depth() == 1
