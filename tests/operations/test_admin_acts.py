"""Replay and discard from the browser: who may, what is shown before, what is done, what is refused."""

import pytest
from django.db import IntegrityError
from django.test import Client
from django.urls import reverse

from operations import replays
from operations.admin import acts
from operations.models import AuditEntry, DeadLetter, Operation, Resolution, Status, Transition
from tests.factories import history, make_dead_letter, make_job, make_operation
from tests.operations.people import browser
from tests.operations.test_admin import NASTY, page_of, seen, text_of
from tests.threads import meanwhile, together

pytestmark = pytest.mark.django_db

SAID = "no answer from '10.0.0.1' in 9 s"
WHY = "the provider was repaired"
ACTS = ("replay", "discard")
ENDS = {"replay": (Status.QUEUED, Resolution.REPLAYING), "discard": (Status.IGNORED, Resolution.DISCARDED)}
LETTERS = "view_deadletter"
ROLES = {
    "nothing": (),
    "view": (LETTERS,),
    "replay": (LETTERS, "replay_deadletter"),
    "discard": (LETTERS, "discard_deadletter"),
    "replay without view": ("replay_deadletter",),
    "both": (LETTERS, "replay_deadletter", "discard_deadletter"),
}
MAY = {"replay": ("replay", "both"), "discard": ("discard", "both")}


def address_of(act):
    return reverse(f"admin:operations_deadletter_{act}")


def operator():
    return browser(LETTERS, "view_operation", "replay_deadletter", "discard_deadletter")


def do(one, act, *letters, reason=WHY, **extra):
    ids = ",".join(str(letter.id) for letter in letters)
    return one.post(address_of(act), {"ids": ids, "reason": reason}, **extra)


def standing():
    """Give all that an act could change, in every table."""
    tables = (Operation, DeadLetter, Transition, AuditEntry)
    return [list(table.objects.order_by("pk").values()) for table in tables]


class TestWhoMay:
    @pytest.mark.parametrize("act", ACTS)
    @pytest.mark.parametrize("role", ROLES)
    def test_act(self, role, act):
        letter = make_dead_letter()
        one = browser(*ROLES[role])
        before = standing()

        looked = one.get(f"{address_of(act)}?ids={letter.id}")
        answers = [looked.status_code, do(one, act, letter).status_code]

        if role in MAY[act]:
            assert answers == [200, 302]
            letter.refresh_from_db()
            assert (letter.operation.status, letter.resolution) == ENDS[act]
        else:
            assert answers == [403, 403]
            assert standing()[:-1] == before[:-1]

    @pytest.mark.parametrize("act", ACTS)
    @pytest.mark.parametrize("role", ROLES)
    def test_choose_it_in_the_list(self, role, act):
        letter = make_dead_letter()
        one = browser(*ROLES[role])
        before = standing()

        answer = one.post(
            reverse("admin:operations_deadletter_changelist"),
            {"action": f"{act}_selected", "_selected_action": [letter.id], "index": "0"},
        )

        if role in MAY[act]:
            assert answer.status_code == 302
            assert answer.url == f"{address_of(act)}?ids={letter.id}"
        else:
            assert answer.status_code == 403
        assert standing()[:-1] == before[:-1]

    @pytest.mark.parametrize("act", ACTS)
    @pytest.mark.parametrize("role", ["view", "replay", "discard", "both"])
    def test_see_its_button(self, role, act):
        letter = make_dead_letter(signature="f" * 16)
        one = browser(*ROLES[role], "view_operation")

        for address in (
            page_of(letter),
            page_of(letter.operation),
            reverse("admin:operations_deadletter_groups"),
            reverse("admin:operations_deadletter_changelist"),
        ):
            offered = f"{act.capitalize()} …" in seen(one.get(address))
            assert offered == (role in MAY[act]), address

    @pytest.mark.parametrize("act", ACTS)
    def test_not_strangers(self, act):
        letter = make_dead_letter()
        before = standing()

        answer = do(Client(), act, letter)

        assert answer.url.startswith(reverse("admin:login"))
        assert standing() == before

    @pytest.mark.parametrize("act", ACTS)
    def test_not_users_who_are_not_staff(self, act):
        letter = make_dead_letter()
        one = browser(*ROLES["both"], is_staff=False)
        before = standing()

        assert do(one, act, letter).status_code == 302
        assert standing() == before

    @pytest.mark.parametrize("act", ACTS)
    def test_superusers(self, act):
        letter = make_dead_letter()

        do(browser(superuser=True), act, letter)

        letter.refresh_from_db()
        assert letter.resolution == ENDS[act][1]

    @pytest.mark.parametrize("act", ACTS)
    def test_not_a_page_of_somebody_else(self, act):
        letter = make_dead_letter()
        careful = Client(enforce_csrf_checks=True)
        careful.force_login(operator().user)

        assert do(careful, act, letter).status_code == 403
        letter.refresh_from_db()
        assert letter.resolution == Resolution.WAITING


class TestRefusal:
    """Who may not, and tries nevertheless, is remembered: once for each attempt, and for none to look."""

    @pytest.mark.parametrize("act", ACTS)
    @pytest.mark.parametrize("role", ["nothing", "view", "replay without view"])
    def test_is_kept_in_the_audit(self, role, act):
        letter = make_dead_letter()
        one = browser(*ROLES[role])

        one.get(f"{address_of(act)}?ids={letter.id}")
        answer = do(one, act, letter)

        assert answer.status_code == 403
        entry = AuditEntry.objects.get()
        assert (entry.actor, entry.action) == (one.user.get_username(), "refused")
        assert (entry.target, entry.reason) == (address_of(act), WHY)
        assert entry.after["ids"] == str(letter.id)
        assert entry.request_id == answer["X-Request-ID"]

    def test_of_a_choice_in_the_list_is_kept(self):
        letter = make_dead_letter()
        address = reverse("admin:operations_deadletter_changelist")

        browser(LETTERS).post(address, {"action": "replay_selected", "_selected_action": [letter.id]})

        entry = AuditEntry.objects.get()
        assert (entry.target, entry.after) == (address, {"action": "replay_selected", "ids": str(letter.id)})

    def test_of_a_page_that_nobody_may_change_is_kept(self):
        operation = make_operation()

        answer = browser("view_operation").post(page_of(operation), {"status": "succeeded"})

        assert answer.status_code == 403
        assert AuditEntry.objects.get().target == page_of(operation)

    def test_keeps_what_can_be_stored_of_nonsense(self):
        answer = browser().post(address_of("replay"), {"ids": "1\0" * 1_000, "reason": "\0" * 2_000})

        assert answer.status_code == 403
        entry = AuditEntry.objects.get()
        assert (len(entry.reason), len(entry.after["ids"])) == (1_000, 500)

    def test_of_a_stranger_is_no_entry(self):
        """Who has not logged in is sent to do so."""
        assert do(Client(), "replay", make_dead_letter()).status_code == 302
        assert not AuditEntry.objects.exists()


class TestPreview:
    def test_says_of_each_what_would_happen(self):
        job = make_job(name="gone.job")
        fine = make_dead_letter()
        gone = make_dead_letter(make_operation(status=Status.FAILED_PERMANENT, job=job))
        closed = make_dead_letter(resolution=Resolution.REPLAYING)
        asked = ",".join(str(each.id) for each in (fine, gone, closed))

        shown = seen(operator().get(f"{address_of('replay')}?ids={asked}"))

        assert "1 can be replayed; 2 cannot and will be left alone" in shown
        assert "Runs again under the same id and key, with 5 fresh attempts." in shown
        assert "No job is called &#x27;gone.job&#x27;" in shown
        assert "It is replaying already." in shown

    def test_changes_nothing(self):
        letter = make_dead_letter()
        before = standing()

        for act in ACTS:
            operator().get(f"{address_of(act)}?ids={letter.id}")

        assert standing() == before

    def test_offers_nothing_that_would_be_refused(self):
        letter = make_dead_letter(resolution=Resolution.REPLAYING)

        shown = text_of(operator().get(f"{address_of('replay')}?ids={letter.id}"))

        assert "None of these can be replayed." in shown
        assert "<textarea" not in shown

    def test_takes_the_oldest_of_a_group(self, monkeypatch):
        monkeypatch.setattr(acts, "LIMIT", 2)
        letters = [make_dead_letter(signature="f" * 16) for _ in range(3)]
        make_dead_letter(signature="0" * 16)

        shown = text_of(operator().get(f"{address_of('replay')}?signature={'f' * 16}"))

        assert f'name="ids" value="{letters[0].id},{letters[1].id}"' in shown
        assert "These are the oldest 2 of the signature" in shown

    @pytest.mark.parametrize("ids", ["", "0", "x", "1,,x", "9" * 40, "٣", "\x00", "-1"])
    def test_understands_no_nonsense(self, ids):
        shown = text_of(operator().get(address_of("replay"), {"ids": ids}))

        assert "No dead letter was chosen" in shown

    @pytest.mark.parametrize("ids", ["", "x", "99999999"])
    def test_does_nothing_to_nothing(self, ids):
        answer = operator().post(address_of("discard"), {"ids": ids, "reason": WHY})

        assert "No dead letter was chosen" in text_of(answer)
        assert not AuditEntry.objects.exists()


class TestActs:
    @pytest.mark.parametrize("act", ACTS)
    def test_move_audit_and_tell(self, act):
        letter = make_dead_letter()
        one = operator()

        answer = do(one, act, letter, headers={"X-Request-ID": "request-of-the-operator"}, follow=True)

        letter.refresh_from_db()
        assert (letter.operation.status, letter.resolution) == ENDS[act]
        assert history(letter.operation)[-1] == ("failed_permanent", ENDS[act][0], f"{act}ed")
        entry = AuditEntry.objects.get()
        assert (entry.actor, entry.action, entry.reason) == (one.user.username, act, WHY)
        assert entry.request_id == "request-of-the-operator"
        assert entry.target == f"operation:{letter.operation_id}"
        assert f"{act.capitalize()}ed 1 dead letter." in seen(answer)

    @pytest.mark.parametrize("act", ACTS)
    @pytest.mark.parametrize("reason", ["", "   ", "\n\t"])
    def test_want_a_reason(self, act, reason):
        letter = make_dead_letter()
        before = standing()

        answer = do(operator(), act, letter, reason=reason)

        assert "Say why: the reason is kept in the audit." in seen(answer)
        assert standing() == before

    @pytest.mark.parametrize("act", ACTS)
    def test_need_a_post(self, act):
        letter = make_dead_letter()
        before = standing()

        operator().get(address_of(act), {"ids": letter.id, "reason": WHY})

        assert standing() == before

    def test_are_done_to_those_that_can_and_not_to_the_rest(self):
        letters = [make_dead_letter(), make_dead_letter(resolution=Resolution.REPLAYING), make_dead_letter()]

        shown = seen(do(operator(), "replay", *letters, follow=True))

        assert "Replayed 2 dead letters." in shown
        assert f"Dead letter {letters[1].id} was left alone" in shown

        assert AuditEntry.objects.count() == 2

    def test_never_touch_more_than_a_person_can_look_through(self, monkeypatch):
        monkeypatch.setattr(acts, "LIMIT", 2)
        letters = [make_dead_letter() for _ in range(3)]

        do(operator(), "replay", *letters)

        assert DeadLetter.objects.filter(resolution=Resolution.WAITING).count() == 1

    def test_tell_only_the_first_refusals(self, monkeypatch):
        monkeypatch.setattr(acts, "REFUSALS_TOLD", 1)
        letters = [make_dead_letter(resolution=Resolution.REPLAYING) for _ in range(3)]

        shown = seen(do(operator(), "replay", *letters, follow=True))

        assert shown.count("was left alone") == 1
        assert "2 dead letters more were left alone." in shown

    @pytest.mark.parametrize("status", [status for status in Status if status != Status.FAILED_PERMANENT])
    @pytest.mark.parametrize("act", ACTS)
    def test_are_refused_for_an_operation_that_is_not_failed(self, act, status):
        letter = make_dead_letter(make_operation(status=status))
        before = standing()

        shown = seen(do(operator(), act, letter, follow=True))

        assert "was left alone" in shown
        assert standing() == before

    def test_show_reasons_as_text(self):
        letter = make_dead_letter()

        answer = do(operator(), "replay", letter, reason=NASTY, follow=True)

        assert "<script>alert(1)" not in text_of(answer)


class TestOneTransaction:
    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("act", ACTS)
    def test_holds_the_act_and_its_audit(self, act, monkeypatch):
        letter = make_dead_letter()
        one = operator()
        before = standing()

        def broken(*args, **values):
            raise IntegrityError("the audit cannot be written")

        monkeypatch.setattr(replays, "_audit", broken)
        with pytest.raises(IntegrityError):
            do(one, act, letter)

        assert standing() == before

    @pytest.mark.django_db(transaction=True)
    def test_lets_one_of_two_replays_win(self):
        letter = make_dead_letter()
        first, second = operator(), operator()

        answers = together(
            lambda: seen(do(first, "replay", letter, follow=True)),
            lambda: seen(do(second, "replay", letter, follow=True)),
        )

        assert sorted("Replayed 1 dead letter." in answer for answer in answers) == [False, True]
        assert sum("was left alone" in answer for answer in answers) == 1
        assert AuditEntry.objects.count() == 1
        assert Operation.objects.get().replays == 1

    @pytest.mark.django_db(transaction=True)
    def test_gives_up_on_rows_that_stay_busy(self):
        letter = make_dead_letter()
        one = operator()

        with meanwhile(lambda: DeadLetter.objects.select_for_update().get(id=letter.id)):
            shown = seen(do(one, "replay", letter, follow=True))

        assert "its rows are busy or the database is away; nothing was changed, try again" in shown
        letter.refresh_from_db()
        assert letter.resolution == Resolution.WAITING


class TestGroups:
    def test_count_what_waits_by_signature(self):
        for _ in range(3):
            make_dead_letter(signature="a" * 16, error_class="Timeout", error_message=SAID)
        make_dead_letter(signature="b" * 16, error_class="KeyError")
        make_dead_letter(signature="c" * 16, expected=True, error_class="Rejected")
        make_dead_letter(signature="d" * 16, resolution=Resolution.REPLAYING, error_class="Gone")

        shown = seen(browser(LETTERS).get(reverse("admin:operations_deadletter_groups")))

        assert "2 signatures" in shown
        assert "3 Timeout no answer from &#x27;…&#x27; in # s" in shown
        assert shown.index("Timeout") < shown.index("KeyError")
        assert "10.0.0.1" not in shown
        assert "Rejected" not in shown
        assert "Gone" not in shown

    def test_show_the_expected_apart(self):
        make_dead_letter(signature="b" * 16, error_class="KeyError")
        make_dead_letter(signature="c" * 16, expected=True, error_class="Rejected")

        shown = seen(browser(LETTERS).get(reverse("admin:operations_deadletter_groups"), {"expected": "1"}))

        assert "Rejected" in shown
        assert "KeyError" not in shown

    def test_are_for_those_who_may_see_dead_letters(self):
        assert browser().get(reverse("admin:operations_deadletter_groups")).status_code == 403


class TestList:
    @pytest.mark.parametrize(
        ("filtered", "expected"),
        [
            ({}, {"waiting", "expected"}),
            ({"resolution": "any"}, {"waiting", "expected", "replaying"}),
            ({"resolution": "replaying"}, {"replaying"}),
            ({"signature": "a" * 16}, {"waiting"}),
            ({"signature": "z"}, set()),
            ({"reason": "business_rejected"}, {"expected"}),
            ({"category__exact": "bug"}, {"waiting", "expected"}),
            ({"expected__exact": "1"}, {"expected"}),
            ({"job_type": "inventory.sync"}, {"waiting", "expected"}),
        ],
    )
    def test_is_narrowed_by(self, filtered, expected):
        letters = {
            "waiting": make_dead_letter(signature="a" * 16),
            "expected": make_dead_letter(expected=True, reason="business_rejected"),
            "replaying": make_dead_letter(resolution=Resolution.REPLAYING),
        }

        shown = text_of(browser(LETTERS).get(reverse("admin:operations_deadletter_changelist"), filtered))

        assert {name for name, letter in letters.items() if page_of(letter) in shown} == expected

    def test_shows_no_value_that_an_error_quotes(self):
        make_dead_letter(error_message="the password 'S3CR3T-XYZ' is wrong")

        shown = text_of(browser(LETTERS).get(reverse("admin:operations_deadletter_changelist")))

        assert "S3CR3T-XYZ" not in shown
        assert "the password" in shown
