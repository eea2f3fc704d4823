"""The page of holds and orders: who may order, what is shown, what an order does."""

import pytest
from django.urls import reverse

from operations.models import AuditEntry, Hold, JobControl
from tests.factories import make_operation
from tests.operations.people import browser

pytestmark = pytest.mark.django_db

PAGE = "admin:operations_jobcontrol_order"
ORDER = {"scope": "job_type:inventory.sync", "act": "pause", "number": "", "reason": "they <b>migrate</b>"}


def commander():
    return browser("view_jobcontrol", "control_jobcontrol", "view_operation", "view_hold", "view_dependency")


class TestOrder:
    @pytest.mark.parametrize(
        ("permissions", "answers"),
        [
            ((), [403, 403]),
            (("control_jobcontrol",), [403, 403]),
            (("view_jobcontrol",), [200, 403]),
            (("view_jobcontrol", "control_jobcontrol"), [200, 302]),
        ],
    )
    def test_wants_a_permission_of_its_own(self, permissions, answers):
        one = browser(*permissions)

        assert [one.get(reverse(PAGE)).status_code, one.post(reverse(PAGE), ORDER).status_code] == answers
        assert Hold.objects.exists() == (302 in answers)

    def test_is_kept_with_who_and_why(self):
        one = commander()

        one.post(reverse(PAGE), ORDER, headers={"X-Request-ID": "r-7"})

        entry = AuditEntry.objects.get()
        assert (entry.actor, entry.reason, entry.request_id) == (
            one.user.get_username(),
            ORDER["reason"],
            "r-7",
        )

    @pytest.mark.parametrize(
        "wrong", [{"scope": "job_type:nothing"}, {"reason": " "}, {"act": "rate"}, {"act": "burn"}]
    )
    def test_that_makes_no_sense_changes_nothing(self, wrong):
        answer = commander().post(reverse(PAGE), ORDER | wrong)

        assert answer.status_code == 200
        assert "tg-wrong" in answer.content.decode()
        assert not JobControl.objects.exists()

    def test_is_shown_there_and_wherever_an_operation_waits(self):
        one, operation = commander(), make_operation()
        one.post(reverse(PAGE), ORDER)
        said = f"paused by {one.user.get_username()}: they &lt;b&gt;migrate"

        for address in (
            reverse(PAGE),
            reverse("admin:operations_operation_changelist"),
            reverse("admin:operations_operation_change", args=[operation.id]),
        ):
            assert said in one.get(address).content.decode(), address

    def test_costs_the_list_of_operations_the_same_for_many(self, django_assert_max_num_queries):
        one = commander()
        one.post(reverse(PAGE), ORDER)
        for _ in range(20):
            make_operation()

        with django_assert_max_num_queries(15):
            one.get(reverse("admin:operations_operation_changelist"))
