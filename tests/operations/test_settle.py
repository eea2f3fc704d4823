"""A person says what became of an effect: with a reference, audited, and not alone where it is much."""

import json

import pytest
from django.core.management import CommandError, call_command
from django.db.models.functions import Now
from django.urls import reverse_lazy

from operations import replays, settle
from operations.models import AuditEntry, DeadLetter, Effect
from operations.settle import Finding, Refused
from tests.operations.people import browser
from tests.tasks.test_effects import Charging, Provider, lost

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = reverse_lazy("admin:operations_effect_settle")
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


class TestPage:
    SAID = {
        "certainty": "confirmed",
        "reference": "ch_1",
        "result": '{"of": "the bank"}',
        "reason": "the <b>statement</b> has it",
    }

    def post(self, one, **said):
        return one.post(PAGE, self.SAID | {"effect": effect().pk} | said, headers={"X-Request-ID": "r-7"})

    @pytest.mark.parametrize(
        ("permissions", "answers"),
        [
            ((), [403, 403]),
            (("settle_effect",), [403, 403]),
            (("view_effect",), [200, 403]),
            (("view_effect", "settle_effect"), [200, 302]),
        ],
    )
    def test_wants_a_permission_of_its_own(self, parked, permissions, answers):
        one = browser(*permissions)

        assert [one.get(PAGE).status_code, self.post(one).status_code] == answers
        assert effect().certainty == ("confirmed" if 302 in answers else "maybe_sent")

    def test_lets_a_replay_go_on_from_what_was_found(self, parked, charging, provider):
        one = settler()
        self.post(one)

        replays.replay(DeadLetter.objects.get().id, actor="ann", reason="settled")

        assert charging.work(parked).status == "succeeded"
        assert charging.answers == [{"of": "the bank", "reference": "ch_1"}]
        entry = AuditEntry.objects.get(action="settle")
        assert (entry.actor, entry.request_id) == (one.user.get_username(), "r-7")

    def test_shows_what_is_unresolved_and_by_which_key(self, parked):
        one = settler()

        assert effect().key in one.get(PAGE).content.decode()
        self.post(one)
        assert "Nothing is unknown" in one.get(PAGE).content.decode()

    def test_takes_two_above_a_limit_and_shows_what_the_first_has_said(self, parked, settings):
        Effect.objects.update(amount_minor=settings.SETTLE_ALONE_UP_TO_MINOR + 1)
        first, second = settler(), settler()

        self.post(first)
        assert effect().certainty == "maybe_sent"
        shown = second.get(PAGE).content.decode()
        assert "&lt;b&gt;statement" in shown
        assert "has proposed it" in self.post(first).content.decode()
        assert "agree first" in self.post(second, reference="ch_2").content.decode()

        assert self.post(second).status_code == 302
        assert effect().certainty == "confirmed"

    @pytest.mark.parametrize(
        "wrong",
        [
            {"effect": "0"},
            {"certainty": "maybe_sent"},
            {"reference": " "},
            {"reason": ""},
            {"result": "{"},
            {"result": "[1]"},
        ],
    )
    def test_that_makes_no_sense_changes_nothing(self, parked, wrong):
        answer = self.post(settler(), **wrong)

        assert answer.status_code == 200
        assert "tg-wrong" in answer.content.decode()
        assert effect().certainty == "maybe_sent"
        assert not AuditEntry.objects.exists()


def settler():
    return browser("view_effect", "settle_effect", "view_operation")
