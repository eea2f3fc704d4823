"""What comes in where kombu would choke: each part that it relies on, one at a time."""

import gzip
import json
import zlib

import amqp
import pytest
from kombu import Connection

from config import connections
from operations.models import Fault
from tasks import door
from tasks.door import StillCompressed
from tests.faults.envelopes import BAD, QUEUE, envelope

KEY = f"installation:{QUEUE}".encode()
AT_THE_DOOR = [
    name
    for name, (item, fault) in BAD.items()
    if fault in ("not_an_envelope", "compressed") or len(item) > door.LONGEST_ITEM
]


@pytest.fixture
def channel(settings):
    """A channel to Redis that is guarded. Nothing is sent."""
    options = settings.REDIS_TRANSPORT_OPTIONS | {"global_keyprefix": "installation:"}
    url = connections.broker(connections.redis_database(settings.REDIS_URL, 0))
    with Connection(url, transport_options=options) as connection:
        door.guard(connection)
        yield connection.default_channel


def taken(channel, item):
    """Give what redis-py makes of Redis's answer to a BRPOP."""
    return channel.client.response_callbacks["BRPOP"]([KEY, item])


class TestGuard:
    def test_lets_a_good_message_through_as_it_is(self, channel):
        good = envelope()

        assert taken(channel, good) == (KEY, good)
        assert channel.client.response_callbacks["BRPOP"](None) is None

    @pytest.mark.parametrize("name", AT_THE_DOOR)
    def test_gives_kombu_a_message_that_it_can_read(self, channel, name):
        item, fault = BAD[name]

        _, instead = taken(channel, item)

        message = channel.Message(json.loads(instead), channel=channel)
        assert message.errors == []
        assert message.content_type == door.SEALED
        assert (message.headers["fault"], message.headers["size"]) == (fault, len(item))
        assert message.delivery_info["routing_key"] == QUEUE
        assert message.body == item[: door.HEAD_BYTES]

    def test_knows_a_value_that_only_looks_typed(self, channel):
        """A client may call its request "__type__"."""
        good = envelope(request_id="__type__")

        assert taken(channel, good) == (KEY, good)

    @pytest.mark.parametrize("header", ["compression", "was_compressed"])
    def test_leaves_no_header_by_which_a_body_is_unpacked(self, channel, header):
        _, instead = taken(channel, envelope(**{header: "gzip"}))

        assert json.loads(instead)["headers"]["fault"] == Fault.COMPRESSED

    def test_is_no_hurdle_for_other_transports(self):
        with Connection("memory://") as connection:
            door.guard(connection)


class TestStillCompressed:
    @pytest.mark.parametrize("pack", [zlib.compress, gzip.compress])
    def test_leaves_the_body_packed(self, pack):
        """Kombu unpacks a body while it makes the message, however much comes out."""
        packed = pack(bytes(1_000_000))
        raw = amqp.Message(packed, application_headers={"compression": "application/x-gzip", "task": QUEUE})
        raw.delivery_info = {}

        message = StillCompressed(raw)

        assert message.body == packed
        assert message.headers == {"was_compressed": "application/x-gzip", "task": QUEUE}
