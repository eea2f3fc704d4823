"""Operations that are done one after the other for a resource, in the order in which they were accepted."""

import uuid
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from operations import accept, claims, jobs, lifecycle, metrics, replays, serializers
from operations.jobs import Backoff, Rejected
from operations.models import AfterCommit, Operation, ResourceSequence
from operations.publish import publish, publisher
from tasks import after_commit, lock, relay
from tasks.handle import OldNews
from tasks.retry import CallFailed
from tests.factories import (
    earlier,
    history,
    make_claim,
    make_dead_letter,
    make_failure,
    make_job,
    make_operation,
    make_request,
    make_user,
    work,
)
from tests.threads import aside, meanwhile, others_wait, together, until

pytestmark = pytest.mark.django_db(transaction=True)

RESOURCE = "tests:line:7"
QUEUE = "tests.work"


class Line:
    """An ordered job whose runs are remembered, and the operations of one resource that wait in its line."""

    def __init__(self, monkeypatch, **contract):
        self.ran = []
        self.fails = {}  # by place: what the run raises
        fields = {"resource": RESOURCE, "ordered": True, "retry": Backoff(5)} | contract
        self.job = make_job(self.handle, **fields)
        monkeypatch.setitem(jobs._registry, self.job.name, self.job)

    def handle(self, run, answer, **values):
        place = run.claim.operation.resource_seq
        self.ran.append(place)
        if place in self.fails:
            raise self.fails.pop(place)

    def stand(self, *statuses, **changes):
        """Make one operation for each status, in line, unless told otherwise."""
        fields = {"job": self.job, "resource": RESOURCE} | changes
        return [
            make_operation(resource_seq=place, status=status, **fields)
            for place, status in enumerate(statuses, start=1)
        ]

    def work(self, operation):
        return work(operation, self.job)


@pytest.fixture
def line(monkeypatch):
    return Line(monkeypatch)


@pytest.fixture
def skipping(monkeypatch):
    return Line(monkeypatch, on_dead="skip")


def ask(job, owner, key="", **changes):
    request = make_request(owner, job=job, key=key or uuid.uuid4().hex, **changes)
    return accept.accept(request).operation


def places():
    return list(Operation.objects.order_by("resource_seq").values_list("resource_seq", flat=True))


def told(broker):
    """Give the ids in the messages that wait, the next first, and forget them."""
    found = [message["headers"]["argsrepr"][2:-3] for message in broker.messages(QUEUE)]
    broker.flush()
    publisher.hang_up()
    return found


class TestPlace:
    def test_is_the_next_of_the_resource(self, line, user):
        assert [ask(line.job, user).resource_seq for _ in range(3)] == [1, 2, 3]

    def test_is_counted_for_each_resource(self, monkeypatch):
        line = Line(monkeypatch, resource="tests:line:{user_id}")

        seen = [ask(line.job, owner).resource_seq for owner in (make_user(), make_user()) for _ in range(2)]

        assert seen == [1, 2, 1, 2]

    def test_is_not_given_to_what_is_not_ordered(self, user):
        assert ask(make_job(resource=RESOURCE), user).resource_seq is None
        assert not ResourceSequence.objects.exists()

    def test_is_not_taken_by_a_repeat(self, line, user):
        ask(line.job, user, key="k-1")
        ask(line.job, user, key="k-1")

        assert ask(line.job, user).resource_seq == 2

    def test_is_not_taken_by_a_refused_request(self, line, user):
        with pytest.raises(accept.VersionMoved):
            ask(line.job, user, seen_version="9")

        assert ask(line.job, user).resource_seq == 1

    def test_is_not_taken_by_what_is_rolled_back(self, line, user):
        with transaction.atomic():
            ask(line.job, user)
            transaction.set_rollback(True)

        assert ask(line.job, user).resource_seq == 1

    def test_leaves_no_gap_when_many_come_at_once(self, line, user):
        together(*[lambda: [ask(line.job, user) for _ in range(5)]] * 6)

        assert places() == list(range(1, 31))
        assert ResourceSequence.objects.get().next_seq == 31

    def test_follows_the_order_of_the_commits(self, line, user):
        """Who asked first but has not committed keeps the others waiting: they come behind."""
        first = []
        with meanwhile(lambda: first.append(ask(line.job, user))):
            second = aside(lambda: ask(line.job, user))
            until(others_wait)
            assert not Operation.objects.exists()

        assert (first[0].resource_seq, second.result(10).resource_seq) == (1, 2)

    def test_goes_to_the_next_when_the_first_is_rolled_back(self, line, user):
        def ask_in_vain():
            ask(line.job, user)
            transaction.set_rollback(True)

        with meanwhile(ask_in_vain):
            second = aside(lambda: ask(line.job, user))
            until(others_wait)

        assert second.result(10).resource_seq == 1

    def test_does_not_wait_for_a_run_that_finishes(self, line, user):
        [head] = line.stand("queued")
        ResourceSequence.objects.create(resource=RESOURCE, next_seq=2)
        claim = make_claim(head)

        def finish():
            assert lifecycle.succeed(claim, hard_limit=40, version=None, digest="") is not None

        with meanwhile(finish):
            assert ask(line.job, user).resource_seq == 2


class TestBlocked:
    def test_makes_no_move(self, line):
        _, second = line.stand("queued", "queued")

        after = line.work(second)

        assert (after.status, after.reason, after.version) == ("queued", "accepted", 1)
        assert (after.runs, after.attempt, after.waits, history(second)) == (0, 0, 0, [])
        assert line.ran == []

    def test_is_no_duplicate(self, line):
        _, second = line.stand("queued", "queued")
        duplicates = metrics.DUPLICATES.labels(QUEUE)
        before = duplicates._value.get()

        line.work(second)

        assert duplicates._value.get() == before

    def test_does_not_hold_the_lock_against_its_predecessor(self, line, monkeypatch):
        _, second = line.stand("queued", "queued")
        taken = []
        monkeypatch.setattr(lock, "take", lambda *values, **named: taken.append(values))

        line.work(second)

        assert taken == []

    @pytest.mark.parametrize("status", ["queued", "processing", "retry_scheduled", "failed_permanent"])
    def test_is_who_stands_behind_one_that_is_not_done(self, line, status):
        _, second = line.stand(status, "queued")

        assert line.work(second).status == "queued"
        assert claimed(second) is None

    @pytest.mark.parametrize("status", ["succeeded", "ignored"])
    def test_is_nobody_behind_one_that_is_done(self, line, status):
        _, second = line.stand(status, "queued")

        assert line.work(second).status == "succeeded"

    @pytest.mark.parametrize("status", ["queued", "processing", "failed_permanent"])
    def test_is_not_who_stands_before_it(self, line, status):
        first, _ = line.stand("queued", status)

        assert line.work(first).status == "succeeded"

    def test_is_who_has_anyone_before_him(self, line):
        *_, last = line.stand("succeeded", "retry_scheduled", "succeeded", "ignored", "queued")

        assert line.work(last).status == "queued"

    def test_does_not_mind_other_resources(self, line):
        line.stand("queued", "queued", resource="tests:line:8")
        _, second = line.stand("succeeded", "queued")

        assert line.work(second).status == "succeeded"

    def test_does_not_mind_what_is_not_ordered(self, line):
        other = make_job(name="tests.other", resource=RESOURCE)
        make_operation(job=other, resource=RESOURCE)
        first, _ = line.stand("queued", "queued")

        assert line.work(first).status == "succeeded"

    def test_is_nobody_that_is_not_ordered(self, line):
        line.stand("failed_permanent")
        other = make_job(name="tests.other", resource=RESOURCE)

        assert work(make_operation(job=other, resource=RESOURCE), other).status == "succeeded"

    def test_is_who_stands_in_the_line_of_another_job(self, line):
        """Two jobs may share a resource: then they share its line."""
        line.stand("queued")
        other = make_job(name="tests.other", resource=RESOURCE, ordered=True)

        blocked = work(make_operation(job=other, resource=RESOURCE, resource_seq=2), other)

        assert blocked.status == "queued"


def claimed(operation):
    return lifecycle.claim(operation.id, job_type=operation.job_type, worker="w", token=uuid.uuid4())


class TestDeadHead:
    def test_holds_up_those_behind_it(self, line, broker):
        first, second = line.stand("queued", "queued")
        line.fails[1] = ValueError("a bug")

        assert line.work(first).status == "failed_permanent"

        assert told(broker) == []
        assert line.work(second).status == "queued"

    def test_holds_up_nobody_whose_job_skips_the_dead(self, skipping, broker):
        first, second = skipping.stand("queued", "queued")
        skipping.fails[1] = ValueError("a bug")

        assert skipping.work(first).status == "failed_permanent"

        assert told(broker) == [str(second.id)]
        assert skipping.work(second).status == "succeeded"

    @pytest.mark.parametrize("status", ["queued", "processing", "retry_scheduled"])
    def test_is_all_that_is_skipped(self, skipping, status):
        _, _, third = skipping.stand("failed_permanent", status, "queued")

        assert skipping.work(third).status == "queued"


class TestWakingUp:
    @pytest.mark.parametrize(
        ("ended", "status"), [(None, "succeeded"), (OldNews("duplicate"), "ignored")], ids=["done", "ignored"]
    )
    def test_comes_with_the_end_of_the_one_before(self, line, broker, ended, status):
        first, second, _ = line.stand("queued", "queued", "queued")
        line.fails = {1: ended} if ended else {}

        assert line.work(first).status == status

        assert told(broker) == [str(second.id)], "the next, and nobody else"
        woken = Operation.objects.get(id=second.id)
        assert (woken.status, woken.run_at <= timezone.now()) == ("queued", True)
        after_commit.forget_settled()
        assert not AfterCommit.objects.exists()

    @pytest.mark.parametrize(
        "failure", [CallFailed("timeout", "…"), Rejected("no", "no")], ids=["will try again", "has failed"]
    )
    def test_does_not_come_with_a_failure(self, line, broker, failure):
        first, *_ = line.stand("queued", "queued")
        line.fails[1] = failure

        line.work(first)

        assert told(broker) == []

    def test_leads_through_the_whole_line(self, line, broker):
        waiting = line.stand(*["queued"] * 5)
        for operation in reversed(waiting):
            line.work(operation)
        while ids := told(broker):
            [woken] = Operation.objects.filter(id__in=ids)
            line.work(woken)

        assert line.ran == [1, 2, 3, 4, 5]

    def test_finds_the_next_beside_one_that_waits_for_the_lock(self, line, broker):
        first, second = line.stand("queued", "queued")
        waiter = make_job(name="tests.other", resource=RESOURCE)
        make_operation(job=waiter, resource=RESOURCE, status="retry_scheduled", reason="lock_contended")

        line.work(first)

        assert told(broker) == [str(second.id)]

    def test_is_repeated_by_the_relay_if_the_worker_died_before_it(self, line, broker, monkeypatch):
        first, second = line.stand("queued", "queued")
        monkeypatch.setattr("tasks.run.after_commit.settle", lambda *values: None)
        line.work(first)
        assert told(broker) == []
        AfterCommit.objects.update(run_at=timezone.now())

        assert relay.repeat_after_commit() == 1

        assert told(broker) == [str(second.id)]

    def test_comes_from_the_relay_when_the_head_was_discarded(self, line, broker):
        first, second = line.stand("failed_permanent", "queued")
        letter = make_dead_letter(first)

        replays.discard(letter.id, actor="user:1", reason="not needed")
        AfterCommit.objects.update(run_at=timezone.now())
        relay.repeat_after_commit()

        assert told(broker) == [str(second.id)]
        assert line.work(second).status == "succeeded"

    def test_is_owed_to_who_came_while_the_lock_was_held_in_vain(self, line, broker, monkeypatch):
        """A second delivery took the lock, lost the claim, and must not leave a waiter to its poll."""
        other = make_job(name="tests.other", resource=RESOURCE)
        monkeypatch.setitem(jobs._registry, other.name, other)
        operation = make_operation(job=other, resource=RESOURCE)
        waiter = make_operation(
            job=other, resource=RESOURCE, status="retry_scheduled", reason="lock_contended"
        )
        monkeypatch.setattr(lifecycle, "claim", lambda *values, **named: None)

        work(operation, other)

        assert [message["headers"]["argsrepr"][2:-3] for message in broker.messages("tests.other")] == [
            str(waiter.id)
        ]


class TestRelay:
    @pytest.fixture
    def long_ago(self):
        return timezone.now() - timedelta(hours=1)

    def test_publishes_none_that_is_blocked(self, line, broker):
        first, *_ = line.stand("queued", "queued", "queued", published_at=None)

        assert relay.publish_due() == 1

        assert told(broker) == [str(first.id)]

    def test_misses_no_message_of_one_that_is_blocked(self, line, broker, long_ago):
        line.stand("processing", "queued", "queued", published_at=long_ago)

        assert relay.republish_lost() == 0

    def test_takes_no_message_for_lost_because_others_stand_behind_it(self, line, broker, long_ago):
        first, *_ = line.stand("queued", "queued", "queued", published_at=long_ago)
        publish(first)

        assert relay.republish_lost() == 0

        assert told(broker) == [str(first.id)]

    def test_publishes_the_first_again_if_its_message_was_lost(self, line, broker, long_ago):
        first, *_ = line.stand("queued", "queued", "queued", published_at=long_ago)

        assert relay.republish_lost() == 1

        assert told(broker) == [str(first.id)]

    def test_publishes_the_next_again_if_its_waking_was_lost(self, line, broker, long_ago):
        _, second, _ = line.stand("succeeded", "queued", "queued", published_at=long_ago)

        assert relay.republish_lost() == 1

        assert told(broker) == [str(second.id)]

    def test_is_not_kept_from_others_by_a_long_line(self, line, broker, long_ago, settings):
        settings.RELAY_BATCH = 2
        line.stand("failed_permanent", *["queued"] * 5, published_at=long_ago)
        other = make_operation(
            job=line.job,
            resource="tests:line:8",
            resource_seq=1,
            published_at=timezone.now() - timedelta(minutes=1),
        )

        assert relay.republish_lost() == 1

        assert told(broker) == [str(other.id)]

    def test_does_not_end_the_line_with_one_that_is_overdue(self, line, broker):
        """A deadline that passes in the line makes a dead letter, which holds up the line as any other."""
        first, second, third = line.stand("processing", "queued", "queued")
        earlier(second, "deadline_at", by=timedelta(hours=2))

        assert relay.end_overdue() == 1
        first.refresh_from_db()
        lifecycle.fail(
            claims.Claim(first, first.claim_token, None, None, None, ""),
            reason="bug",
            failure=make_failure(),
        )

        assert serializers.waiting_for(Operation.objects.get(id=third.id)) == f"blocked by {first.id}"


class TestReplay:
    def test_puts_the_head_back_to_its_place(self, line, broker):
        first, second = line.stand("failed_permanent", "queued")
        letter = make_dead_letter(first)

        replays.replay(letter.id, actor="user:1", reason="mended")

        assert line.work(second).status == "queued"
        assert told(broker) == [str(first.id)]
        assert line.work(first).status == "succeeded"
        assert told(broker) == [str(second.id)]
        assert line.work(second).status == "succeeded"
        assert line.ran == [1, 2]

    @pytest.mark.parametrize("status", ["succeeded", "processing"])
    def test_is_refused_once_another_has_overtaken(self, skipping, status):
        first, second = skipping.stand("failed_permanent", status)
        letter = make_dead_letter(first)
        why = f"operation {second.id} came after it for {RESOURCE} and has overtaken it"

        assert replays.preview(letter) == replays.Preview(eligible=False, why=why)
        with pytest.raises(replays.Refused, match=why):
            replays.replay(letter.id, actor="user:1", reason="mended")

        first.refresh_from_db()
        letter.refresh_from_db()
        assert (first.status, letter.resolution) == ("failed_permanent", "waiting")

    @pytest.mark.parametrize("status", ["queued", "retry_scheduled", "ignored", "failed_permanent"])
    def test_is_possible_while_nobody_has(self, skipping, status):
        first, _ = skipping.stand("failed_permanent", status)
        letter = make_dead_letter(first)

        assert replays.preview(letter).eligible
        assert replays.replay(letter.id, actor="user:1", reason="mended").status == "queued"

    def test_does_not_mind_what_succeeded_before_it_or_elsewhere(self, skipping):
        skipping.stand("succeeded", "succeeded", "succeeded", resource="tests:line:8")
        _, second = skipping.stand("succeeded", "failed_permanent")
        letter = make_dead_letter(second)

        assert replays.replay(letter.id, actor="user:1", reason="mended").status == "queued"

    def test_does_not_mind_those_without_a_place(self, line):
        other = make_job(name=QUEUE, resource=RESOURCE)
        make_operation(job=other, resource=RESOURCE, status="succeeded")
        letter = make_dead_letter(make_operation(job=other, resource=RESOURCE, status="failed_permanent"))

        assert replays.replay(letter.id, actor="user:1", reason="mended").status == "queued"


class TestShown:
    @pytest.fixture
    def waiting(self, line, user):
        return line.stand("failed_permanent", "retry_scheduled", "queued", owner=user)

    def test_to_the_owner(self, waiting, api):
        first, _, third = waiting

        answer = api.get(f"/v1/operations/{third.id}")

        assert answer.json()["waiting_for"] == f"blocked by {first.id}"

    def test_names_the_first_that_is_not_done(self, line):
        *_, dead, _, last = line.stand("succeeded", "ignored", "failed_permanent", "queued", "queued")

        assert serializers.waiting_for(last) == f"blocked by {dead.id}"

    def test_names_nobody_to_the_first(self, line):
        [first] = line.stand("queued")

        assert serializers.waiting_for(first) == "a worker"

    def test_names_no_dead_one_that_is_skipped(self, skipping):
        _, second = skipping.stand("failed_permanent", "queued")

        assert serializers.waiting_for(second) == "a worker"

    def test_in_the_admin(self, waiting, admin_client):
        first, _, third = waiting

        page = admin_client.get(f"/admin/operations/operation/{third.id}/change/").content.decode()

        assert (
            f"It is blocked by {first.id}, which was accepted before it for {RESOURCE} and is not done."
            in page
        )
        assert "its message" not in page.lower(), "nothing is due to be sent"

    def test_in_the_list(self, waiting, admin_client):
        first, *_ = waiting

        page = admin_client.get("/admin/operations/operation/").content.decode()

        assert page.count(f"blocked by {first.id}") == 2

    @pytest.mark.parametrize("status", ["processing", "succeeded", "failed_permanent", "ignored"])
    def test_costs_nothing_where_nobody_waits(self, line, status):
        _, second = line.stand("succeeded", status)

        with CaptureQueriesContext(connection) as queries:
            serializers.waiting_for(second)

        assert len(queries) == 0

    def test_costs_nothing_where_nothing_is_ordered(self):
        operation = make_operation()

        with CaptureQueriesContext(connection) as queries:
            serializers.waiting_for(operation)

        assert len(queries) == 0
