"""The consumer of our workers: Celery's, that reads only our messages and sends its events in handfuls."""

from collections.abc import Callable
from typing import Any

from celery.utils.log import get_logger
from celery.utils.threads import bound_open_broker_sockets  # type: ignore[attr-defined]
from celery.worker.consumer import Consumer
from django.conf import settings

from operations.models import Fault
from tasks import door, evidence, messages, stuck

log = get_logger(__name__)

# Celery sends the events of one turn of its loop as one message: under load one message a task event, which
# is over half of what the worker's parent does. Flower can wait this long.
EVENT_PAUSE_SECONDS = 0.25
# For each answer that a worker that ends awaits from RabbitMQ: with some ten of them, a silent one would use
# up the grace period.
LAST_ANSWER_SECONDS = 0.5
CELERYS_STEPS: Any = Consumer.Blueprint


class CarefulConsumer(Consumer):
    """Acknowledges and takes down what is no message of ours, before Celery can stumble over it."""

    app: Any
    hostname: Any
    strategies: Any
    connection: Any
    connection_errors: Any
    event_dispatcher: Any

    class Blueprint(CELERYS_STEPS):
        """Leaves out what Celery would set up for quorum queues: 28 queues for due times. Ours carry none."""

        default_steps = [each for each in CELERYS_STEPS.default_steps if "DelayedDelivery" not in each]

    def connect(self) -> Any:
        connection = super().connect()
        door.guard(connection)
        return connection

    def stop(self) -> None:
        if settings.ON_RABBITMQ:  # on Redis an answer that is waited for may be a message
            bound_open_broker_sockets(self.connection, LAST_ANSWER_SECONDS)
            if self.event_dispatcher is not None:
                bound_open_broker_sockets(self.event_dispatcher.connection, LAST_ANSWER_SECONDS)
        super().stop()

    def create_task_handler(self, *args: Any, **options: Any) -> Callable[[Any], Any]:
        take = super().create_task_handler(*args, **options)
        tasks = frozenset(name for name in self.strategies if not name.startswith("celery."))

        def take_or_refuse(message: Any) -> None:
            stuck.hear(message)
            fault = messages.fault_of(message, tasks=tasks)
            if fault is not None:
                self._refuse(message, fault)
                return
            message.headers = messages.without_orders(message.headers)
            take(message)

        return take_or_refuse

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        stuck.hear(message)
        self._refuse(message, Fault.NOT_AN_ENVELOPE)

    def _refuse(self, message: Any, fault: Fault) -> None:
        if message.content_type == door.SEALED:
            fault = Fault(message.headers["fault"])
        queue = str((message.delivery_info or {}).get("routing_key"))
        ours = queue in self.app.amqp.queues  # what a sender says is no label
        known = queue.removeprefix(settings.QUEUE_PREFIX) if ours else ""
        evidence.keep(evidence.of(message, fault, queue=known, worker=self.hostname))
        message.ack_log_error(log, self.connection_errors)


class PatientConsumer(CarefulConsumer):
    """Collects task events for EVENT_PAUSE_SECONDS and sends them as one message."""

    hub: Any
    _flush_events: Any
    _flush_is_due = False

    def on_send_event_buffered(self) -> Any:
        if self.hub and not self._flush_is_due:
            self._flush_is_due = True
            self.hub.call_later(EVENT_PAUSE_SECONDS, self._flush_at_last)

    def _flush_at_last(self, *_: Any) -> None:
        self._flush_is_due = False
        self._flush_events()
