"""Lists beside operations: what a person learns of processes and of bad messages."""

from datetime import timedelta

import pytest
from django.utils import timezone

from operations.models import BadMessage, Effect, EffectEvidence, WorkerNode
from tests.factories import make_operation
from tests.operations.people import browser
from tests.operations.test_admin import SCRIPT, list_of, page_of, seen, text_of

pytestmark = pytest.mark.django_db


def node(name, *, ago=timedelta(0), **changes):
    now = timezone.now()
    fields = {"kind": "worker", "release": "2026.11-b", "job_types": ["release.greet"], "slots": 3}
    return WorkerNode.objects.create(
        name=name, started_at=now - timedelta(hours=2) - ago, last_seen_at=now - ago, **fields | changes
    )


class TestWorkerNodes:
    def test_show_release_jobs_slots_and_times(self):
        node("worker@a/1", queues=["release.greet"])

        shown = seen(browser("view_workernode").get(list_of(WorkerNode)))

        for told in ("worker@a/1", "2026.11-b", "release.greet", " 3 ", "2 h"):
            assert told in shown

    def test_tell_the_live_from_the_dead(self):
        node("worker@alive/1")
        node("worker@dead/1", ago=timedelta(minutes=5))

        page = text_of(browser("view_workernode").get(list_of(WorkerNode)))

        alive, dead = (page.split(f">worker@{name}/1<")[1].split("</tr>")[0] for name in ("alive", "dead"))
        assert alive.partition("</td>")[0] != dead.partition("</td>")[0]


class TestBadMessages:
    def test_show_what_is_in_them_on_their_own_page_only(self):
        message = BadMessage.objects.create(
            queue="probe.effect",
            fault="not_json",
            task="probe.effect",
            size=5,
            sha256="0" * 64,
            envelope={"headers": {"lang": SCRIPT}},
            head=f"hello {SCRIPT}",
            worker="probes@a",
            times=7,
        )
        person = browser("view_badmessage")

        listed, page = person.get(list_of(BadMessage)), person.get(page_of(message))

        assert "1 bad message" in seen(listed)
        assert "hello" not in text_of(listed)
        assert "hello" in seen(page)
        assert SCRIPT not in text_of(page)


class TestEffects:
    @pytest.fixture
    def effect(self):
        operation = make_operation(status="retry_scheduled", reason="outcome_unknown", step="charge")
        return Effect.objects.create(
            operation=operation,
            step="charge",
            kind="outside",
            certainty="maybe_sent",
            key=f"{operation.id}:charge:g1",
            request={"payment_method": "pm_secret"},
            amount_minor=1_200,
            run=1,
            first_sent_at=timezone.now(),
            sent_at=timezone.now(),
        )

    def test_show_what_is_known_and_not_what_was_sent(self, effect):
        person = browser("view_effect")

        listed, page = person.get(list_of(Effect)), person.get(page_of(effect))

        assert "charge" in seen(listed)
        assert "pm_secret" not in text_of(listed) + text_of(page)
        assert effect.key in text_of(page)

    def test_are_told_in_the_story_of_their_operation(self, effect):
        EffectEvidence.objects.create(
            operation=effect.operation, step="charge", generation=1, run=1, certainty="confirmed"
        )

        page = seen(browser("view_operation").get(page_of(effect.operation)))

        assert "About to send: charge" in page
        assert "Learned too late by run 1: charge is confirmed" in page
        assert "pm_secret" not in page
