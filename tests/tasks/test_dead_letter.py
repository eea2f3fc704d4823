"""A dead letter is reported to those who are not looking: once, with nothing that a client has sent."""

import logging

import pytest
import sentry_sdk
from django.utils import timezone
from sentry_sdk.transport import Transport

from config import observe
from operations import dead_letters
from operations.models import Category, DeadLetter
from operations.publish import DEAD_LETTER
from tasks import dead_letter, relay
from tests.factories import HOUR, make_dead_letter, make_failure, make_operation
from tests.threads import lose_connection

pytestmark = pytest.mark.django_db

CANARY = "S3CR3T-XYZ"


class StandInSentry(Transport):
    """Keeps what would have been sent."""

    def __init__(self):
        super().__init__()
        self.envelopes = []

    def capture_envelope(self, envelope):
        self.envelopes.append(envelope)

    @property
    def events(self):
        return [event for envelope in self.envelopes if (event := envelope.get_event()) is not None]

    @property
    def text(self):
        return b"".join(envelope.serialize() for envelope in self.envelopes).decode()


@pytest.fixture
def sentry():
    """Sentry as it is set up in production, but for the wire."""
    usual = sentry_sdk.get_client()
    observe.start_sentry("http://public@127.0.0.1:9/1", release="r-7", environment="tests")
    sentry_sdk.get_client().transport = stand_in = StandInSentry()
    with sentry_sdk.isolation_scope():
        yield stand_in
    sentry_sdk.get_global_scope().set_client(usual)


@pytest.fixture
def report():
    """Do what a worker does with one message about a dead letter."""
    return lambda letter: dead_letter.report(str(letter.id))


def reported(caplog):
    return [record for record in caplog.records if record.message == "dead_letter.reported"]


class TestReport:
    def test_sends_one_event_that_names_kind_and_ids(self, sentry, report):
        letter = make_dead_letter(signature="a1b2", error_class="CallFailed", correlation_id="c-1")

        report(letter)

        [event] = sentry.events
        assert event["fingerprint"] == ["inventory.sync", "a1b2"]
        assert (event["level"], event["message"]) == ("error", "inventory.sync: bug (CallFailed)")
        assert event["tags"] == {
            "job_type": "inventory.sync",
            "category": "bug",
            "reason": "bug",
            "signature": "a1b2",
            "operation_id": str(letter.operation_id),
            "correlation_id": "c-1",
        }
        assert (event["release"], event["environment"]) == ("r-7", "tests")

    def test_writes_one_log_line_and_the_time(self, sentry, report, caplog):
        letter = make_dead_letter(signature="a1b2")

        with caplog.at_level(logging.INFO):
            report(letter)

        [line] = reported(caplog)
        assert line.levelno == logging.WARNING
        assert (line.dead_letter_id, line.signature) == (letter.id, "a1b2")
        assert line.operation_id == str(letter.operation_id)
        letter.refresh_from_db()
        assert letter.reported_at is not None

    def test_does_nothing_when_it_was_done(self, sentry, report, caplog):
        letter = make_dead_letter()
        report(letter)
        letter.refresh_from_db()
        first = letter.reported_at

        report(letter)

        letter.refresh_from_db()
        assert letter.reported_at == first
        assert (len(sentry.events), len(reported(caplog))) == (1, 1)

    def test_is_the_same_event_when_the_worker_died_before_it_could_say_so(self, sentry, report):
        letter = make_dead_letter()
        report(letter)
        DeadLetter.objects.update(reported_at=None)

        report(letter)

        first, second = sentry.events
        assert first["event_id"] == second["event_id"]

    def test_is_another_event_for_another_letter_of_the_same_kind(self, sentry, report):
        report(make_dead_letter(signature="a1b2"))
        report(make_dead_letter(signature="a1b2"))

        first, second = sentry.events
        assert first["event_id"] != second["event_id"]
        assert first["fingerprint"] == second["fingerprint"]

    def test_tells_sentry_nothing_that_a_client_sent(self, sentry, report):
        operation = make_operation(status="failed_permanent", payload={"password": CANARY})
        letter = make_dead_letter(operation, error_message=CANARY, traceback=CANARY, idempotency_key=CANARY)
        sentry_sdk.set_user({"username": CANARY})
        sentry_sdk.add_breadcrumb(message=CANARY)
        sentry_sdk.get_isolation_scope().set_extra("body", CANARY)
        logging.getLogger("tests").warning(CANARY)

        report(letter)

        assert len(sentry.events) == 1
        assert CANARY not in sentry.text

    def test_keeps_to_the_log_what_was_to_be_expected(self, sentry, report, caplog):
        letter = make_dead_letter(reason="business_rejected", expected=True)

        with caplog.at_level(logging.INFO):
            report(letter)

        letter.refresh_from_db()
        assert sentry.events == []
        assert [line.levelno for line in reported(caplog)] == [logging.INFO]
        assert letter.reported_at is not None

    def test_does_without_sentry(self, report):
        letter = make_dead_letter()

        report(letter)

        letter.refresh_from_db()
        assert letter.reported_at is not None

    def test_ignores_a_letter_that_is_not_there(self, sentry):
        dead_letter.report("0")

        assert sentry.events == []

    def test_names_the_same_fingerprint_for_failures_that_differ_in_numbers_only(self, sentry, report):
        for number in (41, 42):
            operation = make_operation(status="failed_permanent", reason="bug")
            failure = make_failure(category=Category.BUG, message=f"row {number} of '{number}' is gone")
            report(dead_letters.bury(operation, failure))

        first, second = sentry.events
        assert first["fingerprint"] == second["fingerprint"]


@pytest.mark.django_db(transaction=True)
class TestAskAgainForReports:
    def test_asks_for_what_the_broker_has_lost_until_it_is_reported(self, broker, report):
        letter = make_dead_letter(created_at=timezone.now() - HOUR)

        assert relay.ask_again_for_reports() == 1
        broker.flush()
        assert relay.ask_again_for_reports() == 1
        report(letter)
        broker.flush()

        assert relay.ask_again_for_reports() == 0
        assert broker.depth(DEAD_LETTER) == 0

    def test_does_not_ask_twice_while_the_message_waits(self, broker):
        letter = make_dead_letter(created_at=timezone.now() - HOUR)
        relay.ask_again_for_reports()

        assert relay.ask_again_for_reports() == 0

        [message] = broker.messages(DEAD_LETTER)
        assert message["headers"]["argsrepr"] == f"('{letter.id}',)"

    def test_gives_the_first_message_its_time(self, broker):
        make_dead_letter()

        assert relay.ask_again_for_reports() == 0


@pytest.mark.django_db(transaction=True)
class TestReportAfterARestartOfTheDatabase:
    def test_meets_a_dead_connection(self, sentry, report):
        """A child that does nothing but report keeps its connection, and nobody else would close it."""
        letter = make_dead_letter()
        lose_connection()

        report(letter)

        assert len(sentry.events) == 1
        letter.refresh_from_db()
        assert letter.reported_at is not None
