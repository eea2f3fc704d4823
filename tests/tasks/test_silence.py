"""Two clocks that must agree before a claim is taken back: the database's, and the relay's own."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest

from operations.models import Operation
from tasks import relay
from tasks.silence import Lease, Silence
from tests.factories import earlier, make_claim, make_operation

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
WHOLE = 30.0  # seconds of a lease
TOKEN = uuid.UUID(int=7)


@pytest.fixture(autouse=True)
def a_lease(settings):
    settings.LEASE_SECONDS = WHOLE


def lease(*, left, beat=0, token=TOKEN):
    return Lease(token, NOON + timedelta(seconds=beat), left)


class TestSilence:
    def test_is_not_believed_at_first_sight(self):
        silence = Silence()

        assert silence.among([lease(left=-3_600)], now=0.0) == []
        assert silence.among([lease(left=-3_630)], now=WHOLE - 0.1) == []
        assert silence.among([lease(left=-3_630)], now=WHOLE) == [TOKEN]

    def test_begins_again_with_each_beat(self):
        silence = Silence()

        for beat in range(10):
            assert silence.among([lease(left=-3_600, beat=beat)], now=beat * 10.0) == []

    def test_is_established_when_the_lease_ends_and_no_later(self):
        """A lease first seen 1.5 s after it was written, by one who looks every two seconds."""
        silence = Silence()
        silence.among([], now=0.0)
        silence.among([lease(left=28.5)], now=2.0)

        assert silence.among([lease(left=0.6)], now=30.4) == []
        assert silence.among([lease(left=0.0)], now=30.5) == [TOKEN]

    @pytest.mark.parametrize("left", [-3_600, 27.9, 30.1, 3_600])
    def test_takes_a_lease_that_cannot_have_so_much_left_for_a_whole_one(self, left):
        """Since the last look, two seconds ago, at most two of its seconds can have passed."""
        silence = Silence()
        silence.among([], now=0.0)
        silence.among([lease(left=left)], now=2.0)

        assert silence.among([lease(left=left)], now=31.9) == []
        assert silence.among([lease(left=left)], now=32.0) == [TOKEN]

    def test_is_each_claims_own(self):
        other = uuid.UUID(int=8)
        silence = Silence()
        silence.among([lease(left=9), lease(left=9, token=other)], now=0.0)

        assert silence.among([lease(left=9), lease(left=9, beat=1, token=other)], now=WHOLE) == [TOKEN]

    def test_forgets_what_has_ended(self):
        silence = Silence()
        silence.among([lease(left=9)], now=0.0)
        silence.among([], now=1.0)

        assert silence.among([lease(left=-9)], now=WHOLE) == []


@pytest.mark.django_db(transaction=True)
class TestTakeBack:
    @pytest.fixture(autouse=True)
    def a_fresh_relay(self, monkeypatch):
        monkeypatch.setattr(relay, "_silence", Silence())

    @staticmethod
    def look(at):
        return relay.take_back(clock=lambda: at)

    def test_waits_when_the_clock_was_set_forward(self):
        claim = make_claim()
        self.look(0.0)
        earlier(claim.operation, "lease_expires_at")

        assert [self.look(WHOLE - 0.1), self.look(WHOLE + 0.1)] == [0, 0], "it may be renewed at any moment"
        assert self.look(2 * WHOLE) == 1

    def test_waits_for_no_lease_that_a_clock_set_back_has_made_long(self):
        operation = make_operation(status="processing")
        self.look(0.0)
        earlier(operation, "lease_expires_at", by=-timedelta(hours=1))

        assert [self.look(1.0), self.look(WHOLE), self.look(WHOLE + 1)] == [0, 0, 1]
        assert Operation.objects.get().reason == "worker_lost"

    def test_leaves_one_alone_whose_lease_has_not_ended_by_the_databases_clock(self):
        make_operation(status="processing")

        assert [self.look(at) for at in (0.0, WHOLE, 2 * WHOLE)] == [0, 0, 0]
