"""The receipt, against a mail server that takes, refuses, or goes away in the middle."""

import socketserver
import threading

import pytest

from operations import jobs
from operations.models import Effect
from payments.models import Order, Product
from tests.factories import earlier, make_operation, make_user, work

pytestmark = pytest.mark.django_db(transaction=True)


class Mailbox(socketserver.ThreadingTCPServer):
    """A mail server, as much of RFC 5321 as a client of one letter needs."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self):
        self.letters, self.answers = [], {}  # by command: what is said instead; "" hangs up
        super().__init__(("127.0.0.1", 0), Visit)


class Visit(socketserver.StreamRequestHandler):
    """One client."""

    def handle(self):
        self.say("220 ready")
        while line := self.rfile.readline():
            command = line.split(maxsplit=1)[0].decode().upper() if line.strip() else ""
            if command == "DATA" and not self.take():
                return
            if command != "DATA" and not self.say(self.server.answers.get(command, "250 fine")):
                return
            if command == "QUIT":
                return

    def take(self):
        self.say("354 go on")
        letter = []
        while (line := self.rfile.readline()) != b".\r\n":
            letter.append(line.decode())
        self.server.letters.append("".join(letter))
        return self.say(self.server.answers.get("DATA", "250 taken"))

    def say(self, what):
        if what:
            self.wfile.write(f"{what}\r\n".encode())
        return what


@pytest.fixture
def mailbox(settings):
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.BREAKER_FAILURES = 1_000
    with Mailbox() as server:
        settings.EMAIL_HOST, settings.EMAIL_PORT = server.server_address
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def asked():
    """A customer with an address, an order of theirs, and the operation that sends its receipt."""
    customer = make_user("ana")
    customer.email = "ana@example.test"
    customer.save()
    lamp = Product.objects.create(sku="lamp", name="Lamp", price_minor=5, currency="EUR", stock=1)
    Order.objects.create(
        number="o-1", owner=customer, product=lamp, quantity=1, amount_minor=5, currency="EUR"
    )
    payload = {"order_id": "o-1", "user_id": customer.pk}
    return make_operation(job=jobs.get("payments.receipt"), owner=customer, payload=payload)


def ends(operation):
    return operation.status, operation.reason


class TestReceipt:
    def test_is_sent_once(self, asked, mailbox):
        operation = work(asked)

        assert ends(operation) == ("succeeded", "")
        assert len(mailbox.letters) == 1
        assert "Your order o-1" in mailbox.letters[0]
        assert str(asked.id) in mailbox.letters[0]

    def test_is_sent_to_nobody_without_an_address(self, asked, mailbox):
        asked.owner.email = ""
        asked.owner.save()

        operation = work(asked)

        assert operation.data.result == {"sent": False}
        assert mailbox.letters == []

    def test_waits_for_a_server_that_is_away(self, asked, mailbox, settings):
        settings.EMAIL_PORT = 1

        operation = work(asked)

        assert ends(operation) == ("retry_scheduled", "dependency_unavailable")
        assert Effect.objects.get().certainty == "not_sent"

    @pytest.mark.parametrize(
        ("command", "answer", "certainty"),
        [
            ("MAIL", "451 later", "not_sent"),
            ("DATA", "452 full", "not_sent"),
            ("MAIL", "550 not from you", "refused"),
            ("RCPT", "550 nobody of that name", "refused"),
            ("DATA", "554 no", "refused"),
        ],
    )
    def test_believes_what_the_server_says(self, asked, mailbox, command, answer, certainty):
        mailbox.answers = {command: answer}

        work(asked)

        assert Effect.objects.get().certainty == certainty

    def test_that_may_have_gone_is_a_persons_and_not_sent_again(self, asked, mailbox):
        mailbox.answers = {"DATA": ""}
        operation = work(asked)
        assert ends(operation) == ("retry_scheduled", "outcome_unknown")

        mailbox.answers = {}
        earlier(operation, "run_at")
        operation = work(operation)

        assert ends(operation) == ("failed_permanent", "outcome_unknown")
        assert len(mailbox.letters) == 1
