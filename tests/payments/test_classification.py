"""What the gateway's answers mean, row by row, over HTTP against one that speaks Stripe's protocol."""

import http.server
import socket
import ssl
import threading
import time
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction

from operations.jobs import Rejected
from payments import gateway as adapter
from tasks.retry import CallFailed

GOOD = "pm_card_visa"


def intent_of(*, method=GOOD, amount=1_200):
    key = uuid.uuid4().hex
    request = {
        "operation_id": "2281f947-0000-4000-8000-000000000000",
        "order": "o-1",
        "amount_minor": amount,
        "currency": "EUR",
        "payment_method": method,
        "asked_at": int(time.time()),
    }
    return adapter.create_intent(key, request), request, key


def about(intent):
    return {"intent": intent["id"], "amount_minor": intent["amount_minor"], "currency": intent["currency"]}


def confirmed():
    intent, _, _ = intent_of()
    adapter.confirm(uuid.uuid4().hex, about(intent))
    return about(intent)


def failure_of(act):
    with pytest.raises((CallFailed, Rejected)) as caught:
        act()
    return caught.value


def capture():
    """Capture something that is held, and give what that raised."""
    request = confirmed()
    return failure_of(lambda: adapter.capture(uuid.uuid4().hex, request))


class TestGoodAnswer:
    def test_makes_holds_and_takes(self, gateway):
        intent, _, _ = intent_of()
        held = adapter.confirm(uuid.uuid4().hex, about(intent))
        taken = adapter.capture(uuid.uuid4().hex, about(intent))

        assert [each["status"] for each in (intent, held, taken)] == [
            "requires_confirmation",
            "requires_capture",
            "succeeded",
        ]
        assert held["capture_before"] > "2026"
        moved = [entry["what"] for entry in gateway.journal() if entry["intent"] == intent["id"]]
        assert moved == ["created", "authorised", "captured"]

    def test_carries_our_operation(self, gateway):
        intent, request, _ = intent_of()

        assert adapter.get_intent(intent["id"])["operation_id"] == request["operation_id"]


# The signal, how it is made, then category, certainty, whether it holds the dependency, and the pause asked.
SENT = {
    "429 rate_limit": (
        {"stage": "limiter", "status": 429, "error": {"code": "rate_limit"}},
        ("rate_limited", "not_sent", False, None),
    ),
    "429 rate_limit with Retry-After": (
        {"stage": "limiter", "status": 429, "headers": {"Retry-After": "7"}},
        ("rate_limited", "not_sent", False, 7.0),
    ),
    "429 lock_timeout": (
        {"stage": "limiter", "status": 429, "error": {"code": "lock_timeout"}},
        ("conflict", "not_sent", False, None),
    ),
    "409 idempotency_key_in_use": (
        {"stage": "limiter", "status": 409, "error": {"code": "idempotency_key_in_use"}},
        ("conflict", "maybe_sent", False, None),
    ),
    "500": ({"stage": "engine", "status": 500}, ("outcome_unknown", "maybe_sent", False, None)),
    "500 although should-retry says no": (
        {"stage": "limiter", "status": 500, "headers": {"Stripe-Should-Retry": "false"}},
        ("outcome_unknown", "maybe_sent", False, None),
    ),
    "502 of a proxy": (
        {"stage": "limiter", "status": 502, "body": "<html>Bad Gateway</html>"},
        ("outcome_unknown", "maybe_sent", False, None),
    ),
    "504 of a proxy": (
        {"stage": "limiter", "status": 504, "body": ""},
        ("outcome_unknown", "maybe_sent", False, None),
    ),
    "503": (
        {"stage": "limiter", "status": 503, "headers": {"Retry-After": "3"}},
        ("dependency_unavailable", "maybe_sent", False, 3.0),
    ),
    "424": ({"stage": "limiter", "status": 424}, ("dependency_unavailable", "maybe_sent", False, None)),
    "400 idempotency_error": (
        {"stage": "limiter", "status": 400, "error": {"type": "idempotency_error"}},
        ("bug", "refused", False, None),
    ),
    "other 400": (
        {"stage": "limiter", "status": 400, "error": {"code": "parameter_invalid_integer"}},
        ("invalid_input", "refused", False, None),
    ),
    "other 404": ({"stage": "limiter", "status": 404}, ("invalid_input", "refused", False, None)),
    "400 that may be repeated": (
        {"stage": "limiter", "status": 400, "headers": {"Stripe-Should-Retry": "true"}},
        ("conflict", "not_sent", False, None),
    ),
    "429 that may not be repeated": (
        {"stage": "limiter", "status": 429, "headers": {"Stripe-Should-Retry": "false"}},
        ("invalid_input", "not_sent", False, None),
    ),
    "401": ({"stage": "limiter", "status": 401}, ("dependency_unavailable", "not_sent", True, None)),
    "403": ({"stage": "limiter", "status": 403}, ("dependency_unavailable", "not_sent", True, None)),
    "applied, then dropped": ({"drop": True}, ("outcome_unknown", "maybe_sent", False, None)),
    "applied, and too slow": ({"delay_seconds": 1.5}, ("outcome_unknown", "maybe_sent", False, None)),
    "a body that does not parse": (
        {"body": '{"id": "pi_'},
        ("outcome_unknown", "maybe_sent", False, None),
    ),
    "a page of HTML": ({"body": "<html></html>"}, ("outcome_unknown", "maybe_sent", False, None)),
    "a wrong amount": ({"change": {"amount": 1}}, ("outcome_unknown", "maybe_sent", False, None)),
    "a wrong currency": ({"change": {"currency": "usd"}}, ("outcome_unknown", "maybe_sent", False, None)),
    "a wrong id": ({"change": {"id": "pi_another"}}, ("outcome_unknown", "maybe_sent", False, None)),
    "a status nobody wanted": (
        {"change": {"status": "requires_confirmation"}},
        ("outcome_unknown", "maybe_sent", False, None),
    ),
    "an answer that is no object": ({"body": "[]"}, ("outcome_unknown", "maybe_sent", False, None)),
    "an answer of many megabytes": (
        {"body": "x" * 2_000_000},
        ("outcome_unknown", "maybe_sent", False, None),
    ),
    "a redirect": (
        {"stage": "limiter", "status": 302, "headers": {"Location": "http://169.254.169.254/"}},
        ("outcome_unknown", "maybe_sent", False, None),
    ),
}


class TestSignal:
    @pytest.mark.parametrize("signal", SENT)
    def test_is_classified(self, signal, gateway):
        request = confirmed()
        fault, (category, certainty, shuts, pause) = SENT[signal]
        gateway.fail(on="capture", **fault)

        failure = failure_of(lambda: adapter.capture(uuid.uuid4().hex, request))

        assert isinstance(failure, CallFailed)
        assert (failure.category, failure.certainty, failure.shuts) == (category, certainty, shuts)
        assert failure.retry_after_seconds == pause
        assert failure.dependency == "payments-gateway"

    def test_tells_nothing_of_keys_and_cards(self, gateway):
        gateway.fail(
            on="capture", stage="limiter", status=400, error={"message": f"Invalid {GOOD} sk_test_secret"}
        )

        told = str(capture())

        assert "sk_test" not in told
        assert GOOD not in told


class TestNotSent:
    def test_to_a_port_that_is_closed(self, gateway, settings):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            settings.STRIPE_API_BASE = f"http://127.0.0.1:{free.getsockname()[1]}"
        adapter.hang_up()

        failure = failure_of(intent_of)

        assert (failure.category, failure.certainty) == ("dependency_unavailable", "not_sent")

    def test_to_a_name_that_is_not_found(self, gateway, settings):
        settings.STRIPE_API_BASE, settings.STRIPE_HOSTS = "http://gateway.invalid", ["gateway.invalid"]
        adapter.hang_up()

        failure = failure_of(intent_of)

        assert (failure.category, failure.certainty) == ("dependency_unavailable", "not_sent")

    def test_to_one_whose_certificate_nobody_trusts(self, gateway, settings, self_signed):
        settings.STRIPE_API_BASE, settings.STRIPE_HOSTS = self_signed, ["localhost"]
        adapter.hang_up()

        failure = failure_of(intent_of)

        assert (failure.category, failure.certainty, failure.shuts) == (
            "dependency_unavailable",
            "not_sent",
            True,
        )

    def test_to_a_host_that_is_not_allowed(self, gateway, settings):
        settings.STRIPE_HOSTS = ["api.stripe.com"]

        with pytest.raises(ImproperlyConfigured, match=r"STRIPE_HOSTS allows"):
            intent_of()

    def test_without_a_key(self, gateway, settings):
        settings.STRIPE_API_KEY = ""
        adapter.hang_up()

        failure = failure_of(intent_of)

        assert (failure.certainty, failure.shuts) == ("not_sent", True)

    def test_inside_a_transaction(self, gateway, db):
        with transaction.atomic(), pytest.raises(AssertionError, match="inside a transaction"):
            intent_of()


HARD = {
    "pm_card_chargeDeclined": "generic_decline",
    "pm_card_chargeDeclinedInsufficientFunds": "insufficient_funds",
    "pm_card_chargeDeclinedExpiredCard": "expired_card",
    "pm_card_chargeDeclinedDoNotHonor": "do_not_honor",
    "pm_card_chargeDeclinedLostCard": "card_declined",
    "pm_card_chargeDeclinedStolenCard": "card_declined",
    "pm_card_chargeDeclinedFraudulent": "card_declined",
    "pm_card_chargeDeclinedDuplicate": "duplicate_transaction",
    "pm_card_authenticationRequired": "requires_action",
}
SOFT = (
    "pm_card_chargeDeclinedProcessingError",
    "pm_card_chargeDeclinedIssuerNotAvailable",
    "pm_card_chargeDeclinedReenter",
    "pm_card_chargeDeclinedApproveWithId",
)


class TestDecline:
    @pytest.mark.parametrize("method", HARD)
    def test_is_the_banks_no(self, method, gateway):
        intent, _, _ = intent_of(method=method)

        refusal = failure_of(lambda: adapter.confirm(uuid.uuid4().hex, about(intent)))

        assert isinstance(refusal, Rejected)
        assert refusal.code == HARD[method]
        assert "lost" not in refusal.message
        assert "stolen" not in refusal.message

    @pytest.mark.parametrize("method", SOFT)
    def test_may_be_a_no_for_now(self, method, gateway):
        intent, _, _ = intent_of(method=method)

        refusal = failure_of(lambda: adapter.confirm(uuid.uuid4().hex, about(intent)))

        assert (refusal.category, refusal.certainty) == ("conflict", "refused")


class TestAlready:
    def test_taken_is_what_we_wanted(self, gateway):
        request = confirmed()
        adapter.capture(uuid.uuid4().hex, request)

        assert adapter.capture(uuid.uuid4().hex, request)["status"] == "succeeded"

    def test_let_go_is_what_we_wanted(self, gateway):
        request = confirmed()
        adapter.cancel(uuid.uuid4().hex, request)

        assert adapter.cancel(uuid.uuid4().hex, request)["status"] == "canceled"

    def test_taken_is_not_to_be_let_go(self, gateway):
        request = confirmed()
        adapter.capture(uuid.uuid4().hex, request)

        refusal = failure_of(lambda: adapter.cancel(uuid.uuid4().hex, request))

        assert (refusal.category, refusal.certainty) == ("invalid_input", "refused")


class TestLookUp:
    def test_finds_an_intent_by_its_key(self, gateway):
        intent, request, key = intent_of()

        assert adapter.find_intent(key, request)["id"] == intent["id"]
        assert adapter.find_intent("another", request) is None

    def test_finds_it_behind_a_page_of_others(self, gateway, monkeypatch):
        monkeypatch.setattr(adapter, "PAGE", 2)
        intent, request, key = intent_of()
        for _ in range(5):
            intent_of()

        assert adapter.find_intent(key, request)["id"] == intent["id"]

    def test_tells_what_is_held_taken_and_let_go(self, gateway):
        intent, _, _ = intent_of()
        request = about(intent)
        assert adapter.get_confirmed("k", request) is None

        adapter.confirm(uuid.uuid4().hex, request)
        assert adapter.get_confirmed("k", request)["status"] == "requires_capture"
        assert adapter.get_captured("k", request) is None
        assert adapter.get_cancelled("k", request) is None

        adapter.capture(uuid.uuid4().hex, request)
        assert adapter.get_captured("k", request)["status"] == "succeeded"
        assert failure_of(lambda: adapter.get_cancelled("k", request)).certainty == "refused"

    @pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
    def test_that_fails_proves_nothing(self, status, gateway):
        request = confirmed()
        gateway.fail(on="retrieve", stage="limiter", status=status)

        assert failure_of(lambda: adapter.get_captured("k", request)).certainty != "refused"


class TestKey:
    def test_of_a_cached_500_gives_it_again_and_a_look_up_knows_better(self, gateway):
        request = confirmed()
        gateway.fail(on="capture", stage="engine", status=500)
        first = failure_of(lambda: adapter.capture("k-500", request))
        second = failure_of(lambda: adapter.capture("k-500", request))

        assert [each.certainty for each in (first, second)] == ["maybe_sent"] * 2
        assert adapter.get_captured("k-500", request) is None

    def test_makes_one_intent_however_often_it_is_sent(self, gateway):
        intent, request, key = intent_of()

        assert adapter.create_intent(key, request)["id"] == intent["id"]

    def test_with_another_request_is_a_bug_of_ours(self, gateway):
        _, request, key = intent_of()

        failure = failure_of(lambda: adapter.create_intent(key, {**request, "amount_minor": 1}))

        assert (failure.category, failure.certainty) == ("bug", "refused")


@pytest.fixture
def self_signed(tmp_path):
    """Give the address of a server whose certificate it has signed itself."""
    file = tmp_path / "server.pem"
    file.write_bytes(certificate())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *args: None
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield f"https://localhost:{server.server_port}"
        server.shutdown()
        thread.join()


def certificate():
    """Make a key and a certificate of localhost that it has signed, as PEM."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + signed.public_bytes(serialization.Encoding.PEM)
