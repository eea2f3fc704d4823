"""How we and the gateway may differ, row by row, and what is done about it."""

import json
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from operations.models import AuditEntry, Effect, Operation
from payments import drifts, ledger, reconcile
from payments.models import Drift, Order, Payment, Product, Reconciliation
from tasks import reconciled
from tests.factories import history
from tests.payments.buying import PRICE, ends, go_on, once

pytestmark = pytest.mark.django_db(transaction=True)

LATER = timedelta(days=2)


@pytest.fixture(autouse=True)
def from_now(gateway, monkeypatch):
    """Let a first sweep begin with this test: other tests' intents are other people's."""
    monkeypatch.setattr(reconcile, "FIRST_SWEEP", timedelta(seconds=0))
    monkeypatch.setattr(reconcile, "OVERLAP", timedelta(hours=1))
    before = {intent.id for intent in reconcile.gateway.list_intents(0, 2**40)}
    real = reconcile.gateway.list_intents
    monkeypatch.setattr(
        reconcile.gateway,
        "list_intents",
        lambda *window: (intent for intent in real(0, window[1]) if intent.id not in before),
    )


def kinds():
    return list(Drift.objects.filter(closed_at=None).values_list("kind", flat=True))


class TestSweep:
    def test_finds_nothing_where_all_agrees(self, buy):
        go_on(buy())

        told = reconcile.sweep()

        assert (told["checked"], told["match"], kinds()) == (1, 1, [])

    def test_wakes_an_operation_whose_charge_was_taken(self, buy, gateway):
        """The operation's own look-up finishes as captured and posts the ledger."""
        gateway.fail(on="capture", drop=True)
        purchase = once(buy())
        Operation.objects.update(run_at=timezone.now() + timedelta(hours=1))

        assert reconcile.sweep()["woken"] == 1

        assert Operation.objects.get(id=purchase.id).run_at <= timezone.now()
        assert go_on(purchase).status == "succeeded"
        assert ledger.balance() == {"EUR": PRICE}

    def test_lets_a_hold_be_captured_again_by_its_operation(self, buy, gateway):
        """Held there and undecided here: the operation sends the capture again, under the same key."""
        gateway.fail(on="capture", stage="limiter", status=502)
        purchase = once(buy())

        reconcile.sweep()
        purchase = go_on(purchase)

        keys = {request["key"] for request in gateway.requests() if str(purchase.id) in str(request["key"])}
        assert purchase.status == "succeeded"
        assert f"{purchase.id}:capture:g1" in keys
        assert f"{purchase.id}:capture:g2" not in keys

    def test_finds_what_was_taken_although_we_say_failed(self, buy, gateway):
        go_on(buy())
        Payment.objects.update(status="failed")

        reconcile.sweep()

        assert kinds() == ["charged_though_failed"]
        assert Payment.objects.get().status == "failed"

    def test_finds_what_was_not_taken_although_we_say_so(self, buy, gateway):
        gateway.fail(on="capture", stage="limiter", status=429)
        once(buy())
        Payment.objects.update(status="captured", finished_at=timezone.now())

        reconcile.sweep()

        assert kinds() == ["not_charged"]

    @pytest.mark.parametrize("change", [{"amount_minor": 7}])
    def test_finds_another_amount(self, buy, gateway, change):
        go_on(buy())
        Payment.objects.update(**change)

        reconcile.sweep()

        assert kinds() == ["other_amount"]

    def test_finds_another_currency(self, buy):
        go_on(buy())
        Order.objects.update(currency="USD")

        reconcile.sweep()

        assert kinds() == ["other_amount"]

    def test_finds_an_orphan_with_our_metadata_and_adopts_nothing(self, buy, gateway):
        purchase = go_on(buy())
        gateway.charge(amount="700", currency="eur", metadata={"operation_id": str(purchase.id)})

        reconcile.sweep()

        assert kinds() == ["orphan"]
        assert Payment.objects.count() == 1
        assert ledger.balance() == {"EUR": PRICE}

    def test_finds_a_stolen_charge_without_metadata(self, gateway):
        gateway.charge(amount="700", currency="eur")

        reconcile.sweep()

        assert kinds() == ["orphan"]

    def test_opens_a_difference_once_and_closes_it_when_it_is_gone(self, buy):
        go_on(buy())
        Payment.objects.update(status="failed")
        reconcile.sweep()
        reconcile.sweep()
        assert Drift.objects.count() == 1

        Payment.objects.update(status="captured")
        reconcile.sweep()

        assert kinds() == []
        assert Drift.objects.get().closed_at is not None


class TestFast:
    def test_wakes_who_does_not_know(self, buy, gateway):
        gateway.fail(on="capture", drop=True)
        purchase = once(buy())
        Operation.objects.update(run_at=timezone.now() + timedelta(hours=1))

        told = reconcile.fast(now=timezone.now() + timedelta(minutes=5))

        assert (told["checked"], told["woken"]) == (1, 1)
        assert Operation.objects.get(id=purchase.id).run_at <= timezone.now()

    def test_leaves_those_alone_that_have_just_begun(self, buy, gateway):
        gateway.fail(on="capture", drop=True)
        once(buy())

        assert reconcile.fast() == {}

    def test_finds_those_of_which_nobody_will_ever_tell(self, buy, gateway):
        gateway.fail(on="create", stage="limiter", status=502)
        purchase = once(buy())
        Effect.objects.update(window_ends_at=purchase.created_at)
        purchase = go_on(purchase)
        assert ends(purchase) == ("failed_permanent", "outcome_unknown")

        reconcile.fast(now=timezone.now() + LATER)

        assert kinds() == ["no_object"]
        assert Product.objects.get().stock == 4


class TestBalance:
    def test_agrees_when_all_does(self, buy, gateway):
        go_on(buy())
        gateway.refund(payment_intent=Payment.objects.get().gateway_id, amount="200")

        told = reconcile.balance()

        assert told["differs_minor"] == {"EUR": -200}  # it went back, and no event has told us yet

    def test_is_zero_over_purchases(self, buy):
        for number in range(3):
            go_on(buy(f"o-{number}"))

        assert reconcile.balance()["differs_minor"] == {}


class TestCommand:
    def test_tells_programs(self, buy, capsys):
        go_on(buy())

        call_command("reconcile", "all", "--json")

        told = json.loads(capsys.readouterr().out)
        assert (told["sweep"]["match"], told["open_drifts"]) == (1, 0)
        assert set(Reconciliation.objects.values_list("name", flat=True)) == {"fast", "sweep", "balance"}
        assert all(age < 60 for age in reconcile.ages().values())

    def test_says_that_the_gateway_could_not_be_asked(self, gateway):
        gateway.fail(on="*", stage="limiter", status=503, times=None)

        with pytest.raises(CommandError, match=r"sweep: the gateway could not be asked: HTTP 503"):
            call_command("reconcile", "sweep")


class TestBetween:
    @pytest.mark.parametrize(
        ("ours", "theirs", "kind"),
        [
            ("pending", "requires_confirmation", None),
            ("authorized", "requires_capture", None),
            ("authorized", "succeeded", "undecided"),
            ("authorized", "canceled", "undecided"),
            ("failed", "succeeded", "charged_though_failed"),
            ("cancelled", "succeeded", "charged_though_failed"),
            ("cancelled", "canceled", None),
            ("captured", "canceled", "not_charged"),
        ],
    )
    def test_names_the_difference(self, ours, theirs, kind):
        charge = Payment(status=ours, amount_minor=1, order=Order(currency="EUR"))

        found = drifts.between(charge, {"status": theirs, "amount_minor": 1, "currency": "EUR"})

        assert found == kind


class TestDeadLetter:
    def test_goes_round_again_when_the_gateway_knows(self, buy, gateway):
        """The line was dead for longer than the gateway keeps keys, and the money had been taken."""
        gateway.fail(on="capture", drop=True)
        purchase = once(buy())
        Effect.objects.filter(step="capture").update(window_ends_at=purchase.created_at)
        gateway.fail(on="retrieve", stage="limiter", status=503)
        purchase = once(purchase)
        assert ends(purchase) == ("failed_permanent", "outcome_unknown")
        assert reconciled.send_round() == 0

        reconcile.fast(now=timezone.now() + timedelta(minutes=5))
        assert reconciled.send_round() == 0  # it has asked nobody

        assert reconcile.sweep()["woken"] == 1
        assert reconciled.send_round() == 1
        purchase = go_on(purchase)

        assert purchase.status == "succeeded"
        assert ("failed_permanent", "queued", "reconciled") in history(purchase)
        assert AuditEntry.objects.get().action == "reconcile"
        assert ledger.balance() == {"EUR": PRICE}
        assert reconciled.send_round() == 0
