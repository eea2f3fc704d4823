"""A person says what became of an effect: with a reference, audited, and not alone where it is much."""

import json

import pytest
from django.core.management import CommandError, call_command
from django.db.models.functions import Now

from operations import replays, settle
from operations.models import AuditEntry, DeadLetter, Effect
from operations.settle import Finding, Refused
from tests.tasks.test_effects import Charging, Provider, lost

pytestmark = pytest.mark.django_db(transaction=True)

CONFIRMED = Finding("confirmed", "ch_1", "the bank's statement has it", {"of": "the bank"})
REFUSED = Finding("refused", "ticket 7", "the bank knows nothing of it")


@pytest.fixture
def provider():
    return Provider()


@pytest.fixture
def charging(provider, monkeypatch):
    """A job whose answer was lost, and that nobody can be asked about."""
    charging = Charging(provider, effect={"look_up": None})
    monkeypatch.setitem(replays.jobs._registry, charging.job.name, charging.job)
    return charging


@pytest.fixture
def parked(charging, provider):
    provider.script = [("after", lost())]
    operation = charging.work(charging.operation())
    return charging.work(operation)


def effect():
    return Effect.objects.get()


class TestSettle:
    def test_lets_a_replay_go_on_from_what_was_found(self, parked, charging, provider):
        settle.settle(effect().pk, CONFIRMED, actor="ann")

        replays.replay(DeadLetter.objects.get().id, actor="ann", reason="settled")
        operation = charging.work(parked)

        assert operation.status == "succeeded"
        assert charging.answers == [{"of": "the bank", "reference": "ch_1"}]
        assert len(provider.sent) == 1
        audited = AuditEntry.objects.get(action="settle")
        assert (audited.actor, audited.after["reference"]) == ("ann", "ch_1")

    def test_of_a_no_lets_a_replay_send_under_a_new_key(self, parked, charging, provider):
        settle.settle(effect().pk, REFUSED, actor="ann")

        replays.replay(DeadLetter.objects.get().id, actor="ann", reason="settled")
        operation = charging.work(parked)

        assert operation.status == "succeeded"
        assert provider.sent == [f"{parked.id}:charge:g1", f"{parked.id}:charge:g2"]

    def test_lets_a_discard_be(self, parked):
        letter = DeadLetter.objects.get()
        assert not replays.preview_discard(letter).eligible

        settle.settle(effect().pk, REFUSED, actor="ann")

        assert replays.preview_discard(letter).eligible

    @pytest.mark.parametrize(
        ("finding", "why"),
        [
            (CONFIRMED._replace(reason=" "), "say why"),
            (CONFIRMED._replace(reference=""), "reference"),
            (CONFIRMED._replace(certainty="maybe_sent"), "not 'maybe_sent'"),
        ],
    )
    def test_refuses_half_a_finding(self, parked, finding, why):
        with pytest.raises(Refused, match=why):
            settle.settle(effect().pk, finding, actor="ann")

        assert (effect().certainty, AuditEntry.objects.count()) == ("maybe_sent", 0)

    def test_refuses_what_is_known(self, parked):
        settle.settle(effect().pk, CONFIRMED, actor="ann")

        with pytest.raises(Refused, match="is known: confirmed"):
            settle.settle(effect().pk, REFUSED, actor="bob")

    def test_refuses_while_a_run_looks(self, parked):
        parked.__class__.objects.update(
            status="processing",
            reason="",
            finished_at=None,
            claim_token=parked.id,
            claimed_by="w",
            lease_expires_at=Now(),
        )

        with pytest.raises(Refused, match="is being run"):
            settle.settle(effect().pk, CONFIRMED, actor="ann")

    def test_refuses_what_is_not_there(self):
        with pytest.raises(Refused, match="there is no effect 7"):
            settle.settle(7, CONFIRMED, actor="ann")


class TestTwoPersons:
    @pytest.fixture(autouse=True)
    def much(self, parked, settings):
        Effect.objects.update(amount_minor=settings.SETTLE_ALONE_UP_TO_MINOR + 1)

    def test_have_to_say_the_same(self):
        settle.settle(effect().pk, CONFIRMED, actor="ann")
        assert (effect().certainty, effect().proposed["by"]) == ("maybe_sent", "ann")

        settle.settle(effect().pk, CONFIRMED, actor="bob")

        assert (effect().certainty, effect().proposed) == ("confirmed", None)
        acts = AuditEntry.objects.order_by("id").values_list("actor", "action")
        assert list(acts) == [("ann", "settle-propose"), ("bob", "settle")]

    def test_are_not_one_person_twice(self):
        settle.settle(effect().pk, CONFIRMED, actor="ann")

        with pytest.raises(Refused, match="another person"):
            settle.settle(effect().pk, CONFIRMED, actor="ann")

    @pytest.mark.parametrize(
        "other", [REFUSED, CONFIRMED._replace(reference="ch_2"), CONFIRMED._replace(result={"id": "another"})]
    )
    def test_have_to_agree(self, other):
        settle.settle(effect().pk, CONFIRMED, actor="ann")

        with pytest.raises(Refused, match="ann has found confirmed"):
            settle.settle(effect().pk, other, actor="bob")

    def test_are_not_needed_for_little(self, settings):
        Effect.objects.update(amount_minor=settings.SETTLE_ALONE_UP_TO_MINOR)

        settle.settle(effect().pk, CONFIRMED, actor="ann")

        assert effect().certainty == "confirmed"


class TestCommand:
    def test_lists_what_is_unresolved(self, parked, capsys):
        call_command("effects", "list", "--json")

        [told] = json.loads(capsys.readouterr().out)
        assert (told["operation"], told["step"], told["certainty"]) == (
            str(parked.id),
            "charge",
            "maybe_sent",
        )

    def test_settles(self, parked, capsys):
        call_command(
            "effects",
            "settle",
            str(effect().pk),
            "confirmed",
            "--reference=ch_1",
            "--reason=seen",
            "--result={}",
            "--as=ann",
        )

        assert "confirmed" in capsys.readouterr().out
        assert effect().concluded_by == "ann"
        call_command("effects", "list")
        assert "0 effects" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            (["settle"], "which effect"),
            (["settle", "7", "confirmed", "--reason=x", "--reference=y"], "no effect 7"),
            (["settle", "7", "confirmed", "--result=["], "not JSON"),
            (["settle", "7", "confirmed", "--result=[]"], "a JSON object"),
        ],
    )
    def test_says_what_is_wrong(self, arguments, why):
        with pytest.raises(CommandError, match=why):
            call_command("effects", *arguments)
