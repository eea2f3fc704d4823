"""Evidence of bad messages: taken down short, kept once, and not for ever."""

import uuid
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.utils import timezone

from operations import metrics
from operations.models import BadMessage, Fault
from tasks import evidence, messages
from tests.factories import make_operation

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(evidence, "_purge_at", 0.0)


def message(about=None, *, body=b"[]", **headers):
    return SimpleNamespace(
        headers={"task": "tests.unknown", "id": "1", **headers},
        body=body,
        content_type="application/json",
        content_encoding="utf-8",
        payload=[[str(about or uuid.uuid4())], {}, {}],
    )


def of(fault=Fault.NOT_JSON, **changes):
    return evidence.of(message(**changes), fault, queue="tests.work", worker="worker@a")


class TestOf:
    def test_keeps_names_and_sizes_of_headers_that_may_hold_secrets(self):
        taken = of(kwargsrepr="hunter2", request_id="r-1")

        assert taken.envelope["headers"]["kwargsrepr"] == "(str of 7 characters)"
        assert taken.envelope["headers"]["request_id"] == "r-1"

    def test_is_short_whatever_the_message_is(self):
        taken = of(body=b"\0\xff" * 100_000, **{f"x{number}" * 100: "y" * 1_000 for number in range(1_000)})

        assert taken.size == 200_000
        assert len(taken.head) == 4 * evidence.HEAD_BYTES  # each of these bytes is escaped: \x00
        assert len(str(taken.envelope)) < evidence.MOST_HEADERS * 3 * evidence.LONGEST_VALUE

    @pytest.mark.parametrize("about", ["7", "-" * 36])
    def test_can_be_about_no_operation(self, about):
        assert of(Fault.UNKNOWN_TASK, about=about).about is None


class TestStore:
    def test_makes_one_row_of_equal_messages(self):
        first, again, other = of(), of(), of(body=b"[1]")

        assert all(evidence._store(each) for each in (first, again, other))

        assert sorted(BadMessage.objects.values_list("times", flat=True)) == [1, 2]

    def test_keeps_nothing_of_a_message_whose_operation_another_release_wrote(self):
        operation = make_operation(job_type="tests.unknown")

        assert evidence._store(of(Fault.UNKNOWN_TASK, about=operation.id))
        assert not BadMessage.objects.exists()

    def test_keeps_a_message_that_names_an_operation_of_another_job(self):
        operation = make_operation()

        assert evidence._store(of(Fault.UNKNOWN_TASK, about=operation.id))
        assert BadMessage.objects.get().fault == "unknown_task"

    def test_stores_what_postgresql_would_refuse(self):
        assert evidence._store(of(body=b"\0", request_id="\0\ud800", task="\0"))
        assert BadMessage.objects.get().head == "\\x00"


class TestKeep:
    def test_does_not_wait_when_too_much_is_held_already(self, monkeypatch, caplog):
        monkeypatch.setattr(evidence, "_waiting", evidence.queue.Queue(1))
        monkeypatch.setattr(evidence, "_thread", SimpleNamespace(is_alive=lambda: True))
        counter = metrics.BAD_MESSAGES.labels("tests.work", "not_json")._value
        before = counter.get()

        evidence.keep(of())
        evidence.keep(of())

        assert [record.stored for record in caplog.records] == [True, False]
        assert counter.get() == before + 2


class TestPurge:
    def test_deletes_what_is_old(self, settings):
        for sha256, days in (("a", settings.BAD_MESSAGE_DAYS + 1), ("b", settings.BAD_MESSAGE_DAYS - 1)):
            seen = timezone.now() - timedelta(days=days)
            BadMessage.objects.create(fault="no_id", size=1, sha256=sha256, last_seen_at=seen)

        assert evidence.purge() == 1
        assert BadMessage.objects.get().sha256 == "b"

    def test_keeps_only_the_newest_of_very_many(self, monkeypatch):
        monkeypatch.setattr(evidence, "KEPT_ROWS", 2)
        for number in range(5):
            BadMessage.objects.create(fault="no_id", size=1, sha256=str(number))

        assert evidence.purge() == 3
        assert sorted(BadMessage.objects.values_list("sha256", flat=True)) == ["3", "4"]

    def test_looks_once_in_a_while(self):
        assert evidence.purge() == 0
        BadMessage.objects.create(
            fault="no_id", size=1, sha256="a", last_seen_at=timezone.now() - timedelta(days=99)
        )

        assert evidence.purge() == 0


class TestWithoutOrders:
    def test_takes_away_what_celery_would_obey_and_leaves_what_another_release_may_say(self):
        said = {"task": "a.b", "id": "1", "root_id": "1", "schema_version": 2, "generation": 7}
        orders = {
            "eta": "x",
            "timelimit": [1, 1],
            "callbacks": [1],
            "chord": {},
            "is_eager": True,
            "args": [],
        }

        assert messages.without_orders({**said, **orders}) == said
