"""Look into the broker as it really is: the lists of Redis that workers read, or the queues of RabbitMQ."""

import contextlib
import json
import time
from collections.abc import Iterable, Iterator
from typing import Any

import amqp
import redis
from django.conf import settings
from kombu import Connection, Exchange, Queue
from kombu.message import Message as Received

Message = dict[str, Any]  # body, headers, properties
USUAL = "inventory.sync"
DATABASES = range(4)  # of one Redis: broker, cache, locks, quotas
PATIENCE_SECONDS = 5.0  # for a message to come
DECLARED: set[str] = set()  # queues that this process has used on RabbitMQ: jobs of tests have theirs, too


class Broker:
    """What waits in the queues of one installation."""

    def messages(self, queue: str = USUAL) -> list[Message]:
        """Give the messages that wait in a queue, the next to be delivered first, and leave them there."""
        raise NotImplementedError

    def depth(self, queue: str = USUAL) -> int:
        raise NotImplementedError

    def unacknowledged(self) -> int:
        """Count what workers have taken and not acknowledged, as far as the broker tells."""
        raise NotImplementedError

    def flush(self) -> None:
        """Lose everything that this installation has there, bindings included."""
        raise NotImplementedError

    def forget(self) -> None:
        """Leave nothing there when the installation is gone."""
        self.flush()


def broker_at(url: str, *, redis_url: str, name: str, queues: Iterable[str]) -> Broker:
    """Give the broker of an installation that calls its keys and queues `name`."""
    if url.startswith("amqp"):
        return RabbitBroker(url, name, tuple(queues))
    return RedisBroker(redis_url, name)


def deliver(queue: str = USUAL) -> Received:
    """Take the next message from this process's broker, as a worker's consumer does, and acknowledge it."""
    options = settings.CELERY_BROKER_TRANSPORT_OPTIONS
    with Connection(settings.BROKER_URL, transport_options=options) as connection:
        named = Queue(
            settings.QUEUE_PREFIX + queue,
            Exchange(settings.CELERY_TASK_DEFAULT_EXCHANGE),
            routing_key=settings.QUEUE_PREFIX + queue,
            queue_arguments=settings.QUEUE_ARGUMENTS or None,
        )(connection.channel())
        named.declare()
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while (message := named.get(accept=["json"])) is None:
            assert time.monotonic() < give_up_at, f"no message in {queue}"
            time.sleep(0.02)
        message.ack()
        return message


class RedisBroker(Broker):
    """Lists under a prefix."""

    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self._name = name

    @property
    def client(self) -> "redis.Redis":
        return redis.Redis.from_url(self._url, db=0, decode_responses=True)

    def messages(self, queue: str = USUAL) -> list[Message]:
        with self.client as client:
            newest_first = client.lrange(f"{self._name}:{queue}", 0, -1)
        return [json.loads(raw) for raw in reversed(newest_first)]

    def depth(self, queue: str = USUAL) -> int:
        with self.client as client:
            return int(client.llen(f"{self._name}:{queue}"))

    def unacknowledged(self) -> int:
        with self.client as client:
            return int(client.hlen(f"{self._name}:unacked"))

    def flush(self) -> None:
        with self.client as client:
            for key in client.scan_iter(match=f"{self._name}:*", count=1000):
                client.delete(key)


class RabbitBroker(Broker):
    """Quorum queues whose names begin with a prefix."""

    def __init__(self, url: str, name: str, queues: tuple[str, ...]) -> None:
        self._url = url
        self._name = name
        self._queues = queues

    @contextlib.contextmanager
    def channel(self) -> Iterator[Any]:
        with Connection(self._url, connect_timeout=5) as connection:
            yield connection.channel()

    def messages(self, queue: str = USUAL) -> list[Message]:
        found: list[Message] = []
        with self.channel() as channel:  # what is not acknowledged goes back when it closes
            while (message := self._get(channel, queue)) is not None:
                properties = {**message.properties}
                headers = properties.pop("application_headers", {})
                delivery = {name: message.delivery_info[name] for name in ("exchange", "routing_key")}
                delivery["routing_key"] = delivery["routing_key"].removeprefix(f"{self._name}:")
                found.append(
                    {"body": message.body, "headers": headers}
                    | {"properties": {**properties, "delivery_info": delivery}}
                )
        return found

    def depth(self, queue: str = USUAL) -> int:
        try:
            with self.channel() as channel:
                return int(channel.queue_declare(f"{self._name}:{queue}", passive=True).message_count)
        except amqp.NotFound:
            return 0

    def unacknowledged(self) -> int:
        return 0  # AMQP does not tell; what a worker has taken is not in the depth

    def put(self, queue: str, body: bytes | str, **properties: Any) -> None:
        """Put a message into a queue as it is: its properties, `application_headers` among them."""
        with self.channel() as channel:
            channel.basic_publish(amqp.Message(body, **properties), routing_key=f"{self._name}:{queue}")

    def flush(self) -> None:
        with self.channel() as channel:
            for queue in {*self._queues, *DECLARED}:
                channel.queue_delete(f"{self._name}:{queue}")

    def forget(self) -> None:
        """Delete the exchanges, too: what Celery made is durable and outlives its workers."""
        self.flush()
        with self.channel() as channel:
            for exchange in ("celery", "celery.pidbox", "celeryev"):
                channel.exchange_delete(f"{self._name}:{exchange}")
            channel.exchange_delete(f"reply.{self._name}:celery.pidbox")

    def _get(self, channel: Any, queue: str) -> Any:
        with contextlib.suppress(amqp.NotFound):
            return channel.basic_get(f"{self._name}:{queue}")
        return None
