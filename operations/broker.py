"""One line to the broker: send a message, count those that wait, in bounded time or with an error."""

from typing import Any

from django.conf import settings
from kombu import Connection, Producer
from kombu.exceptions import OperationalError as ConnectionRefused

_KIND = Connection(settings.BROKER_URL)

ON_REDIS = _KIND.transport.driver_type == "redis"

EPOCH = "epoch."  # how the names of queues begin that only show whether the broker has lost something
EPOCH_KEPT_MS = 24 * 3_600 * 1_000

# All that can go wrong with a line. That a queue refuses a message (a nack) is among what is recoverable.
FAULTS: tuple[type[BaseException], ...] = (
    ConnectionRefused,
    *_KIND.connection_errors,
    *_KIND.recoverable_connection_errors,
    *_KIND.channel_errors,
)

# Note [No message without a queue]
# RabbitMQ drops what is sent to a queue that is not there, and confirms it. So a line declares each queue it
# uses, as workers do, and asks to be told of what found none (`mandatory`): queues can be deleted, or lost
# with their node, while the line is up. Redis makes a list of whatever it is sent.


class Line:
    """A connection of one process, used by one thread at a time. After one of FAULTS it is to be hung up.

    Each step waits at most PUBLISH_TIMEOUT_SECONDS for an answer.
    """

    def __init__(self) -> None:
        """Connect.

        Raises:
            One of FAULTS.
        """
        self._declared: set[str] = set()
        self._found_no_queue = False
        self._connection = Connection(
            settings.BROKER_URL, transport_options=_impatient(), connect_timeout=_timeout()
        )
        try:
            self._producer = self._connect()
        except FAULTS:
            self.hang_up()
            raise

    def send(self, queue: str, envelope: dict[str, Any]) -> None:
        """Send a message to the default exchange; on RabbitMQ, wait until a queue has it.

        Raises:
            One of FAULTS.
        """
        if ON_REDIS:
            self._producer.publish(**envelope, routing_key=queue)
            return
        if queue not in self._declared:
            self.count(queue)
        self._publish(queue, envelope)
        if self._found_no_queue:
            self.count(queue)
            self._publish(queue, envelope)

    def count(self, queue: str) -> int:
        """Count the messages that wait in a queue, which is made if it is not there.

        Raises:
            One of FAULTS.
        """
        channel: Any = self._producer.channel
        declared = channel.queue_declare(
            queue=settings.QUEUE_PREFIX + queue,
            durable=True,
            auto_delete=False,
            arguments=_arguments(queue),
        )
        self._declared.add(queue)
        return int(declared.message_count)

    def hang_up(self) -> None:
        """Close it without a word: whoever is at the other end may be silent."""
        self._connection.collect()

    def _connect(self) -> Producer:
        self._connection.ensure_connection(max_retries=0)  # left alone, it sleeps two seconds and tries again
        channel: Any = self._connection.channel()
        if ON_REDIS:  # kombu makes a client for each command, which costs several times the command
            client = channel._create_client()
            channel._create_client = lambda asynchronous=False: client
            return Producer(channel, auto_declare=False)
        channel.connection.sock.settimeout(_timeout())  # no wait of py-amqp's is without an end
        return Producer(channel, auto_declare=False, on_return=self._on_return)

    def _publish(self, queue: str, envelope: dict[str, Any]) -> None:
        self._found_no_queue = False
        self._producer.publish(
            **envelope,
            routing_key=settings.QUEUE_PREFIX + queue,
            mandatory=True,
            timeout=_timeout(),
            confirm_timeout=_timeout(),
        )

    def _on_return(self, *told: object) -> None:
        self._found_no_queue = True


def _arguments(queue: str) -> dict[str, str | int]:
    """Give those of a queue. That of a past epoch, which nobody asks for any more, goes by itself."""
    if ON_REDIS or not queue.startswith(EPOCH):
        return settings.QUEUE_ARGUMENTS
    return {**settings.QUEUE_ARGUMENTS, "x-expires": EPOCH_KEPT_MS}


def _timeout() -> float:
    return float(settings.PUBLISH_TIMEOUT_SECONDS)


def _impatient() -> dict[str, Any]:
    if not ON_REDIS:
        return {"confirm_publish": True, "read_timeout": _timeout(), "write_timeout": _timeout()}
    return {
        **settings.CELERY_BROKER_TRANSPORT_OPTIONS,
        "socket_timeout": _timeout(),
        "socket_connect_timeout": _timeout(),
        "retry_on_timeout": False,
        "max_retries": 0,
    }
