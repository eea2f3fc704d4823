"""Holds: whom they cover, what they let pass, what is said of them, and how long they put a deadline off."""

import uuid
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from operations import accept, deadlines, holds, lifecycle
from operations.models import Hold, HoldKind, Operation, Status, Transition
from operations.serializers import waiting_for
from tasks import relay
from tests.factories import make_operation, make_request, make_user, work

pytestmark = pytest.mark.django_db(transaction=True)

SYNC = "inventory.sync"


def hold(kind=HoldKind.PAUSE, *, types=(SYNC,), **columns):
    columns = {"scope": f"job_type:{uuid.uuid4()}", "actor": "sari", "reason": "they migrate"} | columns
    return Hold.objects.create(kind=kind, job_types=list(types), **columns)


def ago(seconds):
    return Now() - timedelta(seconds=seconds)


def claim(operation, **values):
    return lifecycle.claim(
        operation.id, job_type=operation.job_type, worker="w/1", token=uuid.uuid4(), **values
    )


@pytest.fixture
def sent(monkeypatch):
    sent = []
    monkeypatch.setattr(accept, "publish", lambda operation: sent.append(operation.id))
    monkeypatch.setattr(relay, "publish", lambda operation: not sent.append(operation.id))
    return sent


class TestCovers:
    """Who is held: in a claim, in what accept publishes, and in a list, which asks in another way."""

    @pytest.mark.parametrize(
        ("types", "whose", "kind", "held"),
        [
            ([SYNC], None, "pause", True),
            ([], None, "pause", True),
            (["probe.other"], None, "pause", False),
            ([SYNC], "mine", "pause", True),
            ([], "mine", "rate", True),
            ([SYNC], "another's", "pause", False),
            ([SYNC], None, "refuse", False),
        ],
    )
    def test_says_the_same_to_everybody(self, user, sent, types, whose, kind, held):
        owner = {"mine": user, "another's": make_user(), None: None}[whose]
        hold(kind, types=types, owner=owner)
        operation = make_operation(owner=user)
        holds.look_over([operation])

        seen = lifecycle.look(operation.id, job_type=SYNC)

        assert seen.held == held
        assert (operation.hold is not None) == held
        assert (holds.over(Operation.objects.get(id=operation.id)) is not None) == held
        assert (claim(operation) is None) == held
        relay.publish_due()

    def test_ends_with_the_hold(self):
        operation = make_operation()
        over = hold()
        assert claim(operation) is None

        Hold.objects.filter(id=over.id).update(ended_at=Now())

        assert claim(operation) is not None

    def test_lets_pass_what_names_every_hold(self):
        operation = make_operation()
        one, other = hold("rate", per_second=1), hold("release", per_second=2)

        assert claim(operation, released=[one.id]) is None
        assert claim(operation, released=[one.id, other.id]) is not None


class TestAccept:
    def test_publishes_nothing_that_is_held(self, user, sent):
        hold()

        operation = accept.accept(make_request(user)).operation

        assert (operation.status, operation.published_at, sent) == ("queued", None, [])

    def test_asks_nothing_more_of_the_database_than_without_holds(self, user, sent):
        accept.accept(make_request(user))  # prepared

        with CaptureQueriesContext(connection) as asked:
            accepted = accept.accept(make_request(user, key="k-2"))
            waiting_for(accepted.operation)

        assert [query["sql"] for query in asked.captured_queries if "SELECT" in query["sql"]] == []

    def test_refuses_and_leaves_the_key(self, api, user):
        over = hold("refuse")
        accepted = {"path": "/v1/inventory/sync", "data": {}, "content_type": "application/json"}

        answer = api.post(**accepted, headers={"Idempotency-Key": "k-1"})

        assert (answer.status_code, answer.json()["type"]) == (503, "/docs/problems#not-accepted-now")
        assert int(answer["Retry-After"]) > 0
        assert not Operation.objects.exists()
        Hold.objects.filter(id=over.id).update(ended_at=Now())
        assert api.post(**accepted, headers={"Idempotency-Key": "k-1"}).status_code == 202
        hold("refuse")
        assert api.post(**accepted, headers={"Idempotency-Key": "k-1"}).status_code == 202  # a repeat


class TestRelay:
    def test_publishes_nothing_that_is_held(self, sent):
        hold()
        make_operation(published_at=None)
        make_operation(published_at=Now() - timedelta(hours=1))

        assert (relay.publish_due(), relay.republish_lost(), sent) == (0, 0, [])

    def test_publishes_it_when_the_hold_is_over(self, sent, monkeypatch):
        monkeypatch.setattr(relay.publisher, "depth", lambda queue: 0)
        over = hold()
        never_sent = make_operation(published_at=None)
        sent_before = make_operation()
        Operation.objects.filter(id=sent_before.id).update(published_at=ago(3600))
        Hold.objects.filter(id=over.id).update(ended_at=Now())

        assert (relay.publish_due(), relay.republish_lost()) == (1, 1)
        assert sent == [never_sent.id, sent_before.id]

    def test_leaves_out_one_owner_of_many(self, sent):
        mine, another = make_operation(published_at=None), make_operation(published_at=None)
        hold(types=[], owner=mine.owner)

        relay.publish_due()

        assert sent == [another.id]


class TestMessage:
    def test_of_a_held_operation_changes_nothing(self):
        hold()
        operation = make_operation()
        before = Operation.objects.values().get(id=operation.id)

        work(operation)

        assert Operation.objects.values().get(id=operation.id) == before
        assert not Transition.objects.exists()


class TestSentence:
    @pytest.mark.parametrize(
        ("kind", "per_second", "said"),
        [
            ("pause", 0, "held: paused by sari: they migrate"),
            ("rate", 0.5, "held: at most 30 a minute, set by sari: they migrate"),
        ],
    )
    def test_names_who_and_why(self, kind, per_second, said):
        hold(kind, per_second=per_second)

        assert waiting_for(make_operation()) == said

    def test_of_a_release_names_the_rate(self):
        over = hold("release", scope="dependency:warehouse", per_second=20)

        said = f"held: dependency warehouse answers again since {Hold.objects.get(id=over.id).began_at:%H:%M}"
        assert waiting_for(make_operation()) == f"{said}, released at 20 a second"

    def test_is_in_the_answer_of_the_api_and_its_etag(self, api, user):
        operation = make_operation(owner=user)
        address = f"/v1/operations/{operation.id}"
        free = api.get(address)
        hold()

        answer = api.get(address, headers={"If-None-Match": free["ETag"]})

        assert (answer.status_code, answer.json()["waiting_for"]) == (
            200,
            "held: paused by sari: they migrate",
        )

    def test_is_not_said_of_what_is_done(self):
        hold()

        assert waiting_for(make_operation(status=Status.SUCCEEDED)) == ""


class TestDeadline:
    """What an operation's deadline is put off by while it is held."""

    @pytest.fixture(autouse=True)
    def most(self, settings):
        settings.MAX_DEADLINE_EXTENSION = timedelta(seconds=10_000)

    def seconds(self, *spans, accepted=1000):
        """Hold for (from, until) seconds ago; until None means still."""
        operation = self.accepted(accepted)
        for began, ended in spans:
            hold(began_at=ago(began), ended_at=None if ended is None else ago(ended))
        return self.put_off(operation)

    def accepted(self, seconds_ago):
        operation = make_operation()
        Operation.objects.filter(id=operation.id).update(created_at=ago(seconds_ago))
        return operation

    def put_off(self, operation):
        return round((deadlines.effective(operation) - operation.deadline_at).total_seconds())

    def test_is_as_it_was_without_a_hold(self):
        assert self.seconds() == 0

    def test_counts_all_spans(self):
        assert self.seconds((900, 800), (500, 300)) == 300

    def test_counts_an_overlap_once(self):
        assert self.seconds((900, 700), (800, 600)) == 300

    def test_counts_from_the_acceptance(self):
        assert self.seconds((5000, 900)) == 100

    def test_leaves_out_what_was_over_before_it(self):
        assert self.seconds((5000, 4000)) == 0

    def test_counts_on_while_the_hold_is_open(self):
        assert self.seconds((50, None)) == 50

    def test_is_put_off_no_longer_than_the_most(self, settings):
        settings.MAX_DEADLINE_EXTENSION = timedelta(seconds=120)

        assert self.seconds((900, None)) == 120

    def test_leaves_out_holds_of_others(self):
        operation = self.accepted(1000)
        hold(types=["probe.other"], began_at=ago(500))
        hold(types=[], owner=make_user(), began_at=ago(500))
        hold("refuse", began_at=ago(500))

        assert self.put_off(operation) == 0

    def test_is_not_over_while_it_is_held(self):
        operation = self.accepted(1000)
        held = hold(began_at=ago(900))
        Operation.objects.filter(id=operation.id).update(deadline_at=ago(10))

        assert relay.end_overdue() == 0
        assert lifecycle.look(operation.id, job_type=operation.job_type).overdue is False

        Hold.objects.filter(id=held.id).update(ended_at=ago(895))

        assert lifecycle.look(operation.id, job_type=operation.job_type).overdue is True
        assert relay.end_overdue() == 1
