"""The admin's lists and pages: that they show what is there, to whom they may, and change nothing."""

import re
from datetime import timedelta

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from rest_framework.authtoken.models import TokenProxy

from config.admin import COUNT_CAP, CappedCount
from config.plain import plain
from operations.models import AuditEntry, OperationData, Status, Transition, WorkerNode
from operations.replays import replay
from operations.templatetags import show
from tests.factories import make_dead_letter, make_operation, make_user, work
from tests.operations.people import EVERYTHING_TO_SEE, browser

pytestmark = pytest.mark.django_db

OURS = ("operations", "inventory", "payments")
MODELS = sorted(
    (model for model in admin.site._registry if model._meta.app_label in OURS),
    key=lambda model: model._meta.label,
)
SCRIPT = "<script>alert(1)</script>"
NASTY = f"{SCRIPT} \x1b[31mred\x1b[0m\r\nSet-Cookie: a=b \u202egnp.exe"


def list_of(model):
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")


def page_of(thing):
    return reverse(f"admin:{thing._meta.app_label}_{thing._meta.model_name}_change", args=[thing.pk])


def text_of(response):
    assert response.status_code == 200, response.status_code
    return response.content.decode()


def seen(response):
    """Give what a person reads, without the marks of the page."""
    words = re.sub(r"<(script|style).*?</\1>|<[^>]+>", " ", text_of(response), flags=re.DOTALL)
    return " ".join(words.split())


def make_one_of_each():
    """Make rows of every kind that operations have, one of them failed, replayed and failed again."""
    for status in Status:
        make_operation(status=status)
    letter = make_dead_letter(error_class="CallFailed", error_message="no answer in 10 s", signature="f" * 16)
    replay(letter.id, actor="ayu", reason="the provider was repaired")
    WorkerNode.objects.create(
        name="worker@a/1", kind="worker", release="7", queues=["inventory.sync"], slots=2
    )
    return letter


class TestEveryList:
    @pytest.mark.parametrize("model", MODELS, ids=lambda model: model._meta.label)
    def test_is_shown_to_whoever_may_see_it(self, model):
        make_one_of_each()
        one = browser(f"view_{model._meta.model_name}")

        assert text_of(one.get(list_of(model)))

    @pytest.mark.parametrize("model", MODELS, ids=lambda model: model._meta.label)
    def test_is_refused_to_staff_without_the_permission(self, model):
        assert browser().get(list_of(model)).status_code == 403

    @pytest.mark.parametrize("model", MODELS, ids=lambda model: model._meta.label)
    def test_can_be_searched_for_anything(self, model):
        one = browser(EVERYTHING_TO_SEE)

        for word in ("x", "7", "99999999999999999999999", "٣", "a b", "'", NASTY):
            assert one.get(list_of(model), {"q": word}).status_code == 200

    def test_sends_strangers_to_the_login(self):
        answer = Client().get(reverse("admin:index"))

        assert answer.status_code == 302
        assert answer.url.startswith(reverse("admin:login"))

    def test_is_closed_to_users_who_are_not_staff(self):
        assert browser(EVERYTHING_TO_SEE, is_staff=False).get(reverse("admin:index")).status_code == 302

    def test_is_entered_by_name_and_password(self):
        user = make_user("ayu")
        user.is_staff = True
        user.set_password("correct horse")
        user.save()
        client = Client()

        client.post(reverse("admin:login"), {"username": "ayu", "password": "correct horse"})

        assert client.get(reverse("admin:index")).status_code == 200


class TestReadOnly:
    @pytest.mark.parametrize("model", MODELS, ids=lambda model: model._meta.label)
    def test_nobody_adds_changes_or_deletes_a_row(self, model):
        make_one_of_each()
        root = browser(superuser=True)
        name = f"admin:{model._meta.app_label}_{model._meta.model_name}"
        row = model.objects.first()
        # A refusal is written down itself.
        kept = model.objects.exclude(action="refused") if model is AuditEntry else model.objects.all()
        before = list(kept.order_by("pk").values())

        answers = [root.get(reverse(f"{name}_add")), root.post(reverse(f"{name}_add"), {})]
        if row is not None:
            answers += [
                root.post(page_of(row), {"status": "succeeded"}),
                root.get(reverse(f"{name}_delete", args=[row.pk])),
                root.post(reverse(f"{name}_delete", args=[row.pk]), {"post": "yes"}),
                root.post(list_of(model), {"action": "delete_selected", "_selected_action": [row.pk]}),
            ]

        assert {answer.status_code for answer in answers} == {403}
        assert list(kept.order_by("pk").values()) == before

    def test_even_with_every_permission_given(self):
        one = browser("add_operation", "change_operation", "delete_operation", "view_operation")
        operation = make_operation()

        assert one.post(page_of(operation), {"status": "succeeded"}).status_code == 403
        assert one.post(reverse("admin:operations_operation_add"), {}).status_code == 403


class TestOperationList:
    def test_finds_by_every_name_that_an_operation_has(self):
        wanted = make_operation(
            owner=make_user("komang"),
            request_id="request-1",
            correlation_id="evening",
            idempotency_key="key-1",
            resource="inventory:user:7",
        )
        other = make_operation()
        one = browser("view_operation")

        for word in (str(wanted.id), "request-1", "evening", "key-1", "inventory:user:7", "komang"):
            found = text_of(one.get(list_of(type(wanted)), {"q": word}))
            assert str(wanted.id) in found, word
            assert str(other.id) not in found, word

    def test_wants_every_word_of_a_search(self):
        wanted = make_operation(owner=make_user("komang"), correlation_id="evening")
        other = make_operation(correlation_id="evening")

        found = text_of(browser("view_operation").get(list_of(type(wanted)), {"q": "evening komang"}))

        assert str(wanted.id) in found
        assert str(other.id) not in found

    @pytest.mark.parametrize(
        ("filtered", "expected"),
        [
            ({"status__exact": "failed_permanent"}, {"failed"}),
            ({"reason__exact": "accepted"}, {"old"}),
            ({"job_type": "inventory.sync"}, {"failed", "old"}),
            ({"job_type": "no.such"}, set()),
            ({"age": "1h"}, {"failed"}),
            ({"age": "older-1h"}, {"old"}),
            ({"age": "nonsense"}, {"failed", "old"}),
        ],
    )
    def test_is_narrowed_by(self, filtered, expected):
        made = {
            "failed": make_operation(status=Status.FAILED_PERMANENT),
            "old": make_operation(created_at=timezone.now() - timedelta(hours=2)),
        }

        found = text_of(browser("view_operation").get(list_of(type(made["old"])), filtered))

        assert {name for name, operation in made.items() if str(operation.id) in found} == expected

    def test_never_reads_payloads(self, django_assert_max_num_queries):
        make_operation()
        one = browser("view_operation", "view_operationdata")

        with django_assert_max_num_queries(15) as asked:
            one.get(reverse("admin:operations_operation_changelist"))

        assert not [each for each in asked.captured_queries if "operationdata" in each["sql"]]

    def test_asks_no_more_for_many_rows_than_for_one(self, django_assert_max_num_queries):
        one = browser(EVERYTHING_TO_SEE)
        address = reverse("admin:operations_operation_changelist")
        make_operation()
        with django_assert_max_num_queries(15) as few:
            one.get(address)
        for _ in range(20):
            make_operation()

        with django_assert_max_num_queries(len(few.captured_queries)):
            one.get(address)


class TestOperationPage:
    @pytest.mark.django_db(transaction=True)
    def test_tells_the_story_in_order(self, provider):
        letter = make_dead_letter(signature="f" * 16)
        provider.has(version=7, sword=1)
        replayed = replay(letter.id, actor="ayu", reason="the provider was repaired")
        done = work(replayed)

        shown = seen(browser(EVERYTHING_TO_SEE).get(page_of(done)))

        assert done.status == Status.SUCCEEDED
        steps = (
            "Accepted",
            f"Dead letter {letter.id}",
            "Sent round again",
            "Run 2 begins, attempt 1 of 5",
            f"Dead letter {letter.id} is replayed_ok",
        )
        assert all(step in shown for step in steps)
        assert shown.index("Sent round again") < shown.index("Run 2 begins")
        assert "A person asked for it: replay" in shown
        assert "the provider was repaired" in shown
        assert "Nothing: succeeded is final." in shown

    @pytest.mark.parametrize(
        ("status", "sentence"),
        [
            (Status.QUEUED, "No live worker serves its queue: nothing takes it until one starts."),
            (Status.PROCESSING, "worker-z/9 works on it; it says so again before the lease ends in "),
            (Status.RETRY_SCHEDULED, "attempt 2 of 5 at"),
            (Status.SUCCEEDED, "Nothing: succeeded is final."),
            (Status.IGNORED, "Nothing: ignored is final."),
            (Status.FAILED_PERMANENT, "Nothing by itself."),
        ],
    )
    def test_says_what_happens_next(self, status, sentence):
        assert sentence in seen(browser("view_operation").get(page_of(make_operation(status=status))))

    def test_says_when_a_retry_is_due(self):
        operation = make_operation(
            status=Status.RETRY_SCHEDULED, run_at=timezone.now() + timedelta(seconds=90, milliseconds=900)
        )

        assert "It may run in 1 min 30 s" in seen(browser("view_operation").get(page_of(operation)))

    def test_says_that_a_lease_is_over(self):
        operation = make_operation(status=Status.PROCESSING, lease_expires_at=timezone.now())

        assert "the relay takes the operation back" in seen(browser("view_operation").get(page_of(operation)))

    def test_counts_the_workers_that_serve_its_queue(self):
        for name, age in (("worker@a/1", 0), ("worker@b/1", 0), ("worker@dead/1", 3600)):
            WorkerNode.objects.create(
                name=name,
                kind="worker",
                release="7",
                queues=["inventory.sync"],
                slots=2,
                last_seen_at=timezone.now() - timedelta(seconds=age),
            )

        shown = seen(browser("view_operation").get(page_of(make_operation())))

        assert "2 live workers serve its queue, 4 slots." in shown

    def test_shows_payload_and_error_to_those_who_may_see_data(self):
        operation = make_operation(status=Status.FAILED_PERMANENT, payload={"colour": "teal"})
        OperationData.objects.filter(operation=operation).update(error={"message": "no answer"})

        assert "teal" in seen(browser("view_operation", "view_operationdata").get(page_of(operation)))
        hidden = seen(browser("view_operation").get(page_of(operation)))
        assert "teal" not in hidden
        assert "no answer" not in hidden

    def test_leaves_out_what_this_person_may_not_see(self):
        letter = make_one_of_each()

        shown = seen(browser("view_operation").get(page_of(letter.operation)))

        assert f"Dead letter {letter.id}" not in shown
        assert "A person asked for it" not in shown

    def test_cuts_what_is_too_long_to_read(self):
        operation = make_operation(payload={"much": "x" * 100_000})

        shown = text_of(browser(EVERYTHING_TO_SEE).get(page_of(operation)))

        assert len(shown) < 80_000
        assert "characters, cut" in shown

    def test_shows_what_clients_and_providers_wrote_as_text(self):
        operation = make_operation(
            status=Status.FAILED_PERMANENT,
            payload={"note": NASTY},
            idempotency_key=SCRIPT,
            request_id=SCRIPT,
            correlation_id=SCRIPT,
            resource=SCRIPT,
            waiting_for=SCRIPT,
            step=SCRIPT,
        )
        OperationData.objects.filter(operation=operation).update(
            error={"message": NASTY}, result={SCRIPT: NASTY}
        )
        letter = make_dead_letter(
            operation,
            error_class=SCRIPT,
            error_message=NASTY,
            traceback=NASTY,
            dependency=SCRIPT,
            correlation_id=SCRIPT,
            idempotency_key=SCRIPT,
            signature=SCRIPT[:60],
        )
        Transition.objects.create(
            operation=operation,
            from_status="processing",
            to_status="failed_permanent",
            reason="bug",
            run=1,
            attempt=1,
            error=NASTY,
            actor=SCRIPT,
            at=timezone.now(),
        )
        AuditEntry.objects.create(
            actor=SCRIPT,
            action=SCRIPT,
            target=f"operation:{operation.id}",
            reason=NASTY,
            before={SCRIPT: NASTY},
        )
        root = browser(superuser=True)
        letters = reverse("admin:operations_deadletter_changelist")

        for address in (
            page_of(operation),
            page_of(letter),
            page_of(AuditEntry.objects.get()),
            page_of(Transition.objects.get()),
            letters,
            f"{letters}groups/",
            f"{letters}replay/?ids={letter.id}",
            f"{letters}discard/?signature={SCRIPT}",
            f"{letters}?signature={SCRIPT}&job_type={SCRIPT}&q={SCRIPT}",
            f"{letters}groups/?job_type={SCRIPT}&order={SCRIPT}&p={SCRIPT}",
            list_of(Transition),
            list_of(AuditEntry),
            list_of(type(operation)),
            reverse("admin:index"),
        ):
            shown = text_of(root.get(address))
            assert SCRIPT not in shown, address
            assert "\x1b" not in shown, address
            assert "\u202e" not in shown, address

    def test_does_not_know_ids_that_are_none(self):
        one = browser("view_operation", "view_deadletter")

        for address in (
            "operation/nonsense",
            "operation/%00",
            "deadletter/nonsense",
            "deadletter/99",
            "deadletter/٣",
        ):
            assert one.get(f"/admin/operations/{address}/change/").status_code in (302, 404), address

    def test_asks_at_most_fifteen_times(self, django_assert_max_num_queries):
        letter = make_one_of_each()

        one = browser(EVERYTHING_TO_SEE)

        with django_assert_max_num_queries(15):
            one.get(page_of(letter.operation))


class TestOverview:
    def test_counts_what_waits_runs_and_failed(self):
        make_one_of_each()
        make_dead_letter()
        make_dead_letter(expected=True, reason="business_rejected")

        shown = seen(browser(EVERYTHING_TO_SEE).get(reverse("admin:index")))

        assert "Queued 2" in shown  # one made so, one replayed
        assert "Processing 1" in shown
        assert "Retry scheduled 1" in shown
        assert "Dead letters 1 wait for a person, 1 more expected" in shown
        assert "Workers alive 1" in shown
        assert "the provider was repaired" in shown

    def test_shows_nothing_to_staff_who_may_see_nothing(self):
        make_one_of_each()

        shown = seen(browser().get(reverse("admin:index")))

        assert "Queued" not in shown
        assert "Last failures" not in shown
        assert "inventory.sync" not in shown

    def test_asks_at_most_fifteen_times(self, django_assert_max_num_queries):
        make_one_of_each()
        one = browser(EVERYTHING_TO_SEE)

        with django_assert_max_num_queries(15):
            one.get(reverse("admin:index"))


class TestJump:
    def test_leads_to_operations_and_pages(self):
        shown = text_of(browser("view_operation", "view_auditentry").get("/admin/search/", {"s": "aud"}))

        assert "/admin/operations/operation/?q=aud" in shown
        assert reverse("admin:operations_auditentry_changelist") in shown

    def test_names_no_page_that_is_closed_to_this_person(self):
        assert "/admin/operations/" not in text_of(browser().get("/admin/search/", {"s": "operations"}))

    def test_writes_what_was_typed_as_text(self):
        assert SCRIPT not in text_of(browser("view_operation").get("/admin/search/", {"s": SCRIPT}))

    def test_is_closed_to_strangers(self):
        assert Client().get("/admin/search/", {"s": "x"}).status_code == 302


class TestPeople:
    def test_have_no_page_that_shows_tokens(self):
        assert TokenProxy not in admin.site._registry

    def test_are_added_with_a_password(self):
        root = browser(superuser=True)
        words = {"password1": "correct horse", "password2": "correct horse", "usable_password": "true"}

        answer = root.post(reverse("admin:auth_user_add"), {"username": "ayu", **words})

        assert answer.status_code == 302
        assert User.objects.get(username="ayu").check_password("correct horse")


class TestShow:
    @pytest.mark.parametrize(
        ("seconds", "words"),
        [
            (0, "0 ms"),
            (0.25, "250 ms"),
            (1, "1.0 s"),
            (59, "59 s"),
            (61, "1 min 1 s"),
            (600, "10 min"),
            (3_661, "1 h 1 min"),
            (86_400, "1 d"),
            (90_000, "1 d 1 h"),
            (864_000, "10 d"),
        ],
    )
    def test_writes_spans_in_their_largest_unit(self, seconds, words):
        assert show.span(timedelta(seconds=seconds)) == words

    def test_writes_what_cannot_be_seen_as_escapes(self):
        assert plain("a\x1b[31m\r\nb\u202ec\x00\ttab") == "a\\x1b[31m\nb\\u202ec\\x00\ttab"

    def test_keeps_a_line_one_line(self):
        assert show.line("a\r\nb\tc  d") == "a b c d"
        assert show.line("x" * 200, 10) == "xxxxxxxxx…"


class TestCappedCount:
    def test_says_that_it_stopped(self):
        assert str(CappedCount(COUNT_CAP)) == "100,000+"
        assert str(CappedCount(COUNT_CAP - 1)) == "99,999"
