"""The one door to the broker: what goes through it, and how long it may take when nobody is behind it."""

import os
import socket
import time

import pytest
from celery.worker.request import Request

from operations.broker import Line
from operations.models import Operation
from operations.publish import BrokerAway, publish, publisher
from tasks.base import app
from tests.factories import make_operation
from tests.threads import together

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.broker]

QUEUE = "inventory.sync"


@pytest.fixture
def broker_hung(settings):
    """A broker that accepts connections and never answers, as one under SIGSTOP."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        scheme = "amqp" if settings.ON_RABBITMQ else "redis"
        settings.BROKER_URL = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}/0"
        publisher.hang_up()
        yield


class TestPublish:
    def test_sends_a_message_that_celery_carries_out(self, broker, provider, user):
        provider.has(version=1, sword=1)
        operation = make_operation(owner=user)

        assert publish(operation) is True
        Request(broker.deliver(), app=app).execute()

        operation.refresh_from_db()
        assert operation.status == "succeeded"

    def test_sends_ids_and_nothing_else(self, broker):
        operation = make_operation(payload={"user_id": 1, "secret": "s3cret"}, request_id="r-1")

        publish(operation)

        message = broker.deliver()
        assert message.payload == [
            [str(operation.id)],
            {},
            {"callbacks": None, "errbacks": None, "chain": None, "chord": None},
        ]
        assert message.headers["request_id"] == "r-1"
        assert "s3cret" not in str(broker.messages())

    def test_says_the_headers_that_celery_itself_would(self, broker):
        operation = make_operation()
        theirs = app.amqp.as_task_v2("an-id", QUEUE, (str(operation.id),), {}, ignore_result=True)

        publish(operation)

        ours = broker.deliver().headers
        for header in ("lang", "task", "parent_id", "group", "argsrepr", "kwargsrepr", "ignore_result"):
            assert ours[header] == theirs.headers[header], header
        assert ours["id"] == ours["root_id"]

    def test_never_says_when(self, broker):
        publish(make_operation(status="retry_scheduled"))

        headers = broker.deliver().headers
        assert not {"eta", "countdown", "expires", "timelimit", "retries"} & headers.keys()

    def test_goes_to_the_queue_by_its_name_through_no_exchange(self, broker):
        publish(make_operation())

        [message] = broker.messages(QUEUE)
        assert message["properties"]["delivery_info"] == {"exchange": "", "routing_key": QUEUE}

    def test_reaches_the_queue_after_the_broker_lost_everything(self, broker):
        publish(make_operation())
        broker.flush()

        assert publish(make_operation()) is True

        assert broker.depth() == 1

    def test_gives_each_message_an_id_of_its_own(self, broker):
        operation = make_operation()

        publish(operation)
        publish(operation)

        assert broker.deliver().headers["id"] != broker.deliver().headers["id"]

    def test_serves_many_threads(self, broker):
        operations = [make_operation() for _ in range(8)]

        sent = together(*(lambda operation=operation: publish(operation) for operation in operations))

        assert sent == [True] * 8
        assert broker.depth() == 8

    def test_marks_the_row_when_nobody_takes_it(self, broker_away):
        operation = make_operation()

        assert publish(operation) is False

        assert Operation.objects.get().published_at is None

    def test_gives_up_at_once_when_the_broker_is_down(self, broker_away, settings):
        operation = make_operation()

        began = time.monotonic()
        publish(operation)

        assert time.monotonic() - began < settings.PUBLISH_TIMEOUT_SECONDS

    def test_gives_up_soon_when_the_broker_hangs(self, broker_hung, settings):
        settings.PUBLISH_TIMEOUT_SECONDS = 0.8
        operation = make_operation()

        began = time.monotonic()
        assert publish(operation) is False

        # One timeout is waited for, not one for each try.
        assert time.monotonic() - began < 1.5

    def test_leaves_a_broker_alone_that_has_just_failed(self, broker_away, settings, broker):
        publish(make_operation())
        settings.BROKER_URL = app.conf.broker_url

        assert publish(make_operation()) is False

        assert broker.depth() == 0

    def test_tries_again_after_the_pause(self, broker_away, settings, broker):
        settings.PUBLISH_PAUSE_SECONDS = 0
        publish(make_operation())
        settings.BROKER_URL = app.conf.broker_url

        assert publish(make_operation()) is True

        assert broker.depth() == 1


class TestDepth:
    def test_counts_what_waits(self):
        publish(make_operation())
        publish(make_operation())

        assert publisher.depth(QUEUE) == 2

    def test_is_zero_for_a_queue_that_nobody_has_used(self):
        assert publisher.depth("tests.never_used") == 0

    def test_is_zero_after_the_broker_lost_everything(self, broker):
        publish(make_operation())
        broker.flush()

        assert publisher.depth(QUEUE) == 0

    def test_says_that_nobody_can_know(self, broker_away):
        with pytest.raises(BrokerAway):
            publisher.depth(QUEUE)


class TestRests:
    def test_is_so_of_one_queue_when_that_one_refuses(self, broker, monkeypatch):
        send = Line.send

        def refuse_one(line, queue, envelope):
            if queue == "tests.work":
                raise ConnectionError
            send(line, queue, envelope)

        monkeypatch.setattr(Line, "send", refuse_one)

        assert publish(make_operation(job_type="tests.work")) is False
        assert (publisher.rests("tests.work"), publisher.rests(QUEUE)) == (True, False)
        assert publish(make_operation()) is True

    def test_is_so_of_all_when_nobody_answers(self, broker_away):
        publish(make_operation())

        assert publisher.rests("tests.work")


class TestHasPlenty:
    @pytest.fixture
    def full(self, broker, settings):
        """A queue with as many messages as make plenty, all sent from here."""
        settings.PLENTY_OF_MESSAGES = 3
        for _ in range(3):
            publish(make_operation())
        return publisher

    def test_is_so_once_as_many_wait(self, full):
        assert full.has_plenty(QUEUE) is True

    def test_is_not_so_before(self, broker, settings):
        settings.PLENTY_OF_MESSAGES = 3
        for _ in range(2):
            publish(make_operation())

        assert publisher.has_plenty(QUEUE) is False

    def test_is_not_so_when_workers_have_taken_them(self, full, broker):
        for _ in range(3):
            broker.deliver()

        assert full.has_plenty(QUEUE) is False

    def test_is_believed_for_a_moment_only(self, full, broker, monkeypatch):
        monkeypatch.setattr("operations.publish.PLENTY_SECONDS", 0.1)
        assert full.has_plenty(QUEUE) is True
        broker.flush()
        assert full.has_plenty(QUEUE) is True

        time.sleep(0.15)

        assert full.has_plenty(QUEUE) is False

    def test_is_not_so_when_nobody_can_know(self, full, broker_hung):
        publisher._believed[QUEUE] = 3

        assert publisher.has_plenty(QUEUE) is False

    def test_is_not_waited_for_while_another_thread_talks_to_the_broker(self, full):
        with full._lock:
            began = time.monotonic()

            assert full.has_plenty(QUEUE) is False

        assert time.monotonic() - began < 0.1

    def test_is_not_asked_for_where_nobody_may_wait(self, full, monkeypatch):
        monkeypatch.setattr(full, "_ask_depth", lambda queue: pytest.fail("it was asked"))

        assert full.has_plenty(QUEUE, ask=False) is False

    def test_is_not_so_of_another_queue(self, full):
        assert full.has_plenty("tests.work") is False


class TestFork:
    def test_leaves_the_child_no_lock_that_a_thread_of_its_parent_holds(self, broker):
        operation = make_operation()
        publish(operation)
        with publisher._lock:
            child = os.fork()
            if not child:
                os._exit(0 if publisher._line is None and publisher._lock.acquire(timeout=0.1) else 1)

        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
