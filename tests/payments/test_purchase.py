"""A purchase from its reservation to the ledger, against a gateway that speaks Stripe's protocol."""

from datetime import timedelta

import pytest

from inventory.models import Grant
from operations import cancel, reading, replays
from operations.models import DeadLetter, Effect, Operation
from operations.verify import violations
from payments import ledger
from payments.models import LedgerEntry, Order, Payment, Product, Reservation
from tests.factories import earlier, make_user, work
from tests.payments.buying import PRICE, ends, go_on, once

pytestmark = pytest.mark.django_db(transaction=True)

UNKNOWN = ("retry_scheduled", "outcome_unknown")


def stock():
    return Product.objects.get(sku="lamp").stock


def charged(gateway, operation):
    return [entry["what"] for entry in gateway.journal(operation_id=str(operation.id))]


class TestPurchase:
    def test_charges_once_and_everything_agrees(self, buy, gateway):
        operation = go_on(buy())

        assert operation.status == "succeeded"
        assert charged(gateway, operation) == ["created", "authorised", "captured"]
        order, payment = Order.objects.get(), Payment.objects.get()
        assert (order.status, payment.status, payment.amount_minor, stock()) == ("paid", "captured", PRICE, 4)
        assert payment.gateway_id.startswith("pi_")
        assert ledger.balance() == {"EUR": PRICE}
        follow_ups = Operation.objects.filter(parent=operation.id).values_list("job_type", flat=True)
        assert set(follow_ups) == {"inventory.grant", "payments.receipt"}
        assert operation.data.result == {
            "order_id": "o-1",
            "payment": payment.gateway_id,
            "paid_minor": PRICE,
        }
        assert violations() == []

    def test_grants_what_was_bought_once(self, buy):
        go_on(buy())
        granting = Operation.objects.get(job_type="inventory.grant")

        granted = work(granting)
        work(granting)

        assert granted.status == "succeeded"
        assert Grant.objects.get().quantity == 1

    def test_keeps_nothing_of_the_card_but_the_token(self, buy):
        go_on(buy())

        kept = str(list(Effect.objects.values("request", "result", "error")))
        assert "4242" not in kept
        assert "pm_card_visa" in kept


class TestRefusedByUs:
    @pytest.mark.parametrize(
        ("changes", "code"),
        [
            ({"sku": "chair"}, "Nothing is called chair"),
            ({"amount_minor": 1}, "cost 1200 EUR"),
            ({"currency": "USD"}, "cost 1200 EUR"),
            ({"quantity": 9, "amount_minor": 9 * PRICE}, "not 9 of lamp left"),
        ],
    )
    def test_asks_the_gateway_nothing(self, buy, gateway, changes, code):
        before = len(gateway.requests())

        operation = go_on(buy(**changes))

        assert ends(operation) == ("failed_permanent", "business_rejected")
        assert code in operation.data.error["message"]
        assert len(gateway.requests()) == before
        assert stock() == 5
        assert not Order.objects.exists()

    def test_of_an_order_that_was_for_something_else(self, buy):
        go_on(buy(method="pm_card_chargeDeclined"))

        operation = go_on(buy(quantity=2, amount_minor=2 * PRICE))

        assert ends(operation) == ("failed_permanent", "business_rejected")


class TestDeclined:
    def test_releases_the_goods_and_is_expected(self, buy, gateway):
        operation = go_on(buy(method="pm_card_chargeDeclinedInsufficientFunds"))

        assert ends(operation) == ("failed_permanent", "business_rejected")
        assert DeadLetter.objects.get().expected
        assert (stock(), Order.objects.get().status, Payment.objects.get().status) == (5, "pending", "failed")
        assert Reservation.objects.get().released_at is not None
        assert "captured" not in charged(gateway, operation)
        assert violations() == []

    def test_softly_is_tried_under_new_keys_and_then_released(self, buy, gateway):
        operation = go_on(buy(method="pm_card_chargeDeclinedProcessingError"))

        assert ends(operation) == ("failed_permanent", "business_rejected")
        tried = Effect.objects.filter(step="authorise").values_list("generation", flat=True)
        assert sorted(tried) == [1, 2, 3]
        assert stock() == 5

    def test_order_may_be_bought_again(self, buy, gateway):
        go_on(buy(method="pm_card_chargeDeclined"))

        operation = go_on(buy())

        assert operation.status == "succeeded"
        assert (stock(), Order.objects.get().status) == (4, "paid")

    def test_and_replayed_makes_a_new_intent_under_a_new_key(self, buy, gateway):
        operation = go_on(buy(method="pm_card_chargeDeclined"))

        replays.replay(DeadLetter.objects.get().id, actor="ann", reason="the bank says it works")
        operation = go_on(operation)

        keys = [entry["key"] for entry in gateway.journal("created", operation_id=str(operation.id))]
        assert keys == [f"{operation.id}:intent:g1", f"{operation.id}:intent:g2"]


class TestSameOrder:
    def test_paid_is_a_duplicate_that_points_at_the_first(self, buy, gateway):
        first = go_on(buy())

        second = go_on(buy())

        assert ends(second) == ("ignored", "duplicate")
        assert second.data.result == {"duplicate_of": str(first.id)}
        assert len(gateway.journal("captured", operation_id=str(second.id))) == 0
        assert stock() == 4

    def test_undecided_is_waited_for(self, buy, gateway):
        first, second = buy(), buy()
        gateway.fail(on="capture", drop=True)
        first = once(first)
        assert ends(first) == UNKNOWN

        second = once(second)
        assert ends(second) == ("retry_scheduled", "conflict")
        assert second.attempt == 0

        go_on(first)
        second = go_on(second)

        assert ends(second) == ("ignored", "duplicate")
        captured = [entry for entry in gateway.journal("captured") if entry["operation_id"] == str(first.id)]
        assert len(captured) == 1
        assert gateway.journal(operation_id=str(second.id)) == []

    def test_of_another_customer_is_another(self, buy):
        go_on(buy())

        assert go_on(buy(owner=make_user("budi"))).status == "succeeded"
        assert stock() == 3


class TestLostAnswer:
    @pytest.mark.parametrize("on", ["create", "confirm", "capture"])
    def test_of_what_was_done_is_looked_up_and_nothing_is_done_twice(self, buy, gateway, on):
        gateway.fail(on=on, drop=True)
        operation = once(buy())
        assert ends(operation) == UNKNOWN

        operation = go_on(operation)

        assert operation.status == "succeeded"
        assert charged(gateway, operation) == ["created", "authorised", "captured"]
        # An intent moves no money: it is sent again under its key, and that is an attempt.
        assert (operation.attempt, operation.lookups) == (2 if on == "create" else 1, 1)
        assert ledger.balance() == {"EUR": PRICE}
        assert violations() == []

    @pytest.mark.parametrize("on", ["create", "confirm", "capture"])
    def test_of_what_was_not_done_is_sent_again_under_the_same_key(self, buy, gateway, on):
        gateway.fail(on=on, stage="limiter", status=502)
        operation = go_on(buy())

        assert operation.status == "succeeded"
        assert charged(gateway, operation) == ["created", "authorised", "captured"]

    def test_of_an_intent_is_looked_up_when_its_key_may_be_forgotten(self, buy, gateway):
        gateway.fail(on="create", drop=True)
        operation = once(buy())
        Effect.objects.filter(step="intent").update(window_ends_at=operation.created_at)
        gateway.forget_keys()

        operation = go_on(operation)

        assert operation.status == "succeeded"
        assert charged(gateway, operation) == ["created", "authorised", "captured"]

    def test_behind_a_cached_500_is_known_by_reading_it(self, buy, gateway):
        """The key gives the 500 for ever; the intent says that nothing was taken."""
        gateway.fail(on="capture", stage="engine", status=500)
        operation = once(buy())
        assert ends(operation) == UNKNOWN

        for _ in range(3):
            operation = once(operation)

        assert operation.status != "succeeded"
        assert "captured" not in charged(gateway, operation)
        assert {effect.generation for effect in Effect.objects.filter(step="capture")} == {1}

    def test_after_the_window_is_never_sent_again(self, buy, gateway):
        gateway.fail(on="capture", stage="limiter", status=502)
        operation = once(buy())
        Effect.objects.filter(step="capture").update(window_ends_at=operation.created_at)
        gateway.forget_keys()
        before = [request for request in gateway.requests() if request["path"].endswith("/capture")]

        operation = go_on(operation)

        after = [request for request in gateway.requests() if request["path"].endswith("/capture")]
        assert ends(operation) == ("failed_permanent", "outcome_unknown")
        assert DeadLetter.objects.get().certainty == "maybe_sent"
        assert after == before
        assert (stock(), Payment.objects.get().status) == (4, "authorized")


class TestCancel:
    def ask(self, operation):
        return cancel.cancel(reading.stands(operation.id, owner_id=operation.owner_id)).operation

    def test_before_the_capture_lets_go_of_everything(self, buy, gateway):
        gateway.fail(on="capture", stage="limiter", status=429)
        operation = once(buy())

        self.ask(operation)
        operation = go_on(operation)

        assert ends(operation) == ("ignored", "cancelled")
        assert charged(gateway, operation) == ["created", "authorised", "canceled"]
        assert (stock(), Payment.objects.get().status) == (5, "cancelled")
        assert violations() == []

    def test_while_the_hold_is_unknown_looks_first(self, buy, gateway):
        gateway.fail(on="confirm", drop=True)
        operation = once(buy())

        self.ask(operation)
        operation = go_on(operation)

        assert ends(operation) == ("ignored", "cancelled")
        assert charged(gateway, operation) == ["created", "authorised", "canceled"]
        assert stock() == 5

    def test_once_the_capture_may_be_done_is_too_late(self, buy, gateway):
        gateway.fail(on="capture", drop=True)
        operation = once(buy())

        with pytest.raises(cancel.NotCancellable):
            self.ask(operation)

        assert go_on(operation).status == "succeeded"


class TestDeadline:
    def test_while_the_capture_is_unknown_looks_first(self, buy, gateway):
        gateway.fail(on="capture", drop=True)
        operation = once(buy())
        earlier(operation, "deadline_at", by=timedelta(days=2))

        assert go_on(operation).status == "succeeded"

    def test_before_it_releases(self, buy, gateway):
        gateway.fail(on="capture", stage="limiter", status=429)
        operation = once(buy())
        earlier(operation, "deadline_at", by=timedelta(days=2))

        operation = go_on(operation)

        assert ends(operation) == ("failed_permanent", "deadline_passed")
        assert charged(gateway, operation) == ["created", "authorised", "canceled"]
        assert stock() == 5


class TestAuthorisation:
    def test_that_lapses_is_not_captured(self, buy, gateway, monkeypatch):
        gateway.fail(on="capture", stage="limiter", status=429)
        operation = once(buy())
        held = Effect.objects.get(step="authorise")
        Effect.objects.filter(pk=held.pk).update(
            result={**held.result, "capture_before": "2026-01-01T00:00:00+00:00"}
        )

        operation = go_on(operation)

        assert ends(operation) == ("failed_permanent", "business_rejected")
        assert charged(gateway, operation) == ["created", "authorised", "canceled"]


class TestLedger:
    @pytest.mark.parametrize(
        "change",
        [lambda: LedgerEntry.objects.update(amount_minor=1), lambda: LedgerEntry.objects.all().delete()],
    )
    def test_is_insert_only(self, buy, change):
        go_on(buy())

        with pytest.raises(Exception, match="insert-only"):
            change()
