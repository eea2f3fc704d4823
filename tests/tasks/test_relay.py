"""What the relay makes good: rows in, rows out, and the number it says."""

import uuid
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import OperationalError, connection
from django.utils import timezone
from redis.exceptions import TimeoutError as RedisTimeout

from inventory.api import view
from inventory.models import InventoryItem
from operations import publish
from operations.models import AfterCommit, DeadLetter, Operation, Status, Transition
from operations.publish import BrokerAway
from tasks import lock, relay
from tasks.lock import StoreAway
from tasks.management.commands import relay as command
from tests.factories import history, make_operation, make_user, take_back, work
from tests.threads import meanwhile, together

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.broker]


def ago(**span):
    return timezone.now() - timedelta(**span)


def published_long_ago(**changes):
    return make_operation(published_at=ago(hours=1), **changes)


def expired(**changes):
    return make_operation(status=Status.PROCESSING, lease_expires_at=ago(seconds=1), **changes)


class TestPublishDue:
    def test_publishes_what_was_never_published(self, broker):
        operation = make_operation(published_at=None)

        assert relay.publish_due() == 1

        assert broker.deliver().payload[0] == [str(operation.id)]
        operation.refresh_from_db()
        assert operation.published_at is not None

    def test_publishes_a_retry_when_its_time_has_come(self, broker):
        make_operation(status="retry_scheduled", run_at=ago(seconds=1))
        make_operation(status="retry_scheduled", run_at=timezone.now() + timedelta(minutes=1))

        assert relay.publish_due() == 1

        assert broker.depth() == 1

    @pytest.mark.parametrize("status", ["processing", "succeeded", "failed_permanent", "ignored"])
    def test_leaves_alone_what_does_not_wait(self, status, broker):
        make_operation(status=status, published_at=None)

        assert relay.publish_due() == 0

    def test_publishes_the_longest_due_first_and_one_batch_at_a_time(self, broker, settings):
        settings.RELAY_BATCH = 2
        young, old, older = (make_operation(published_at=None, run_at=ago(minutes=age)) for age in (1, 2, 3))

        assert [relay.publish_due() for _ in range(3)] == [2, 1, 0]

        first_two = {broker.deliver().payload[0][0] for _ in range(2)}
        assert first_two == {str(old.id), str(older.id)}
        assert broker.deliver().payload[0][0] == str(young.id)

    def test_sets_back_what_nobody_took(self, broker_away):
        make_operation(published_at=None)

        assert relay.publish_due() == 0

        assert Operation.objects.get().published_at is None

    def test_is_no_move(self):
        operation = make_operation(published_at=None)

        relay.publish_due()

        assert history(operation) == []


class TestOfEach:
    def test_goes_on_behind_a_queue_that_does_not_answer(self):
        def do(queue):
            if queue == "deaf":
                raise BrokerAway
            return 2

        assert relay._of_each(do, ["one", "deaf", "other"]) == 4

    def test_says_that_none_answers(self):
        def do(queue):
            raise BrokerAway

        with pytest.raises(BrokerAway):
            relay._of_each(do, ["one", "other"])


class TestRepublishLost:
    def test_publishes_all_after_the_broker_lost_everything(self, broker):
        for operation in [published_long_ago() for _ in range(3)]:
            publish.publish(operation)
        broker.flush()

        assert [relay.republish_lost() for _ in range(2)] == [3, 0]

        assert broker.depth() == 3

    def test_gives_an_honest_backlog_no_copies_however_old_it_is(self, broker):
        for operation in [published_long_ago() for _ in range(3)]:
            publish.publish(operation)

        assert relay.republish_lost() == 0

        assert broker.depth() == 3

    def test_publishes_as_many_as_are_missing_the_longest_unheard_of_first(self, broker):
        unheard = [make_operation(published_at=ago(hours=age)) for age in (1, 3, 2)]
        publish.publish(unheard[0])

        assert relay.republish_lost() == 2

        broker.deliver()
        sent_again = {broker.deliver().payload[0][0] for _ in range(2)}
        assert sent_again == {str(unheard[1].id), str(unheard[2].id)}

    def test_believes_in_a_message_that_was_sent_just_now(self, broker):
        make_operation(published_at=ago(seconds=1))

        assert relay.republish_lost() == 0

    def test_counts_each_queue_by_itself(self, broker):
        published_long_ago()
        for _ in range(3):
            publish.publish(make_operation(job_type="tests.work"))

        assert relay.republish_lost() == 1

    def test_leaves_alone_what_is_not_due(self, broker):
        published_long_ago(run_at=timezone.now() + timedelta(minutes=1))

        assert relay.republish_lost() == 0

    def test_does_not_guess_what_an_absent_broker_lacks(self, broker_away):
        published_long_ago()

        with pytest.raises(BrokerAway):
            relay.republish_lost()


class TestTakeBack:
    def test_lets_a_first_loss_run_at_once(self):
        operation = expired()

        assert [take_back() for _ in range(2)] == [1, 0]

        freed = Operation.objects.get()
        assert (freed.status, freed.reason, freed.attempt) == ("retry_scheduled", "worker_lost", 1)
        assert freed.run_at <= timezone.now()
        assert history(operation) == [("processing", "retry_scheduled", "worker_lost")]

    def test_lets_a_second_loss_wait(self):
        operation = expired(attempt=2, runs=2)
        Transition.objects.create(
            operation=operation,
            from_status="processing",
            to_status="retry_scheduled",
            reason="worker_lost",
            run=1,
            attempt=1,
            actor="relay",
            at=ago(minutes=1),
        )

        take_back()

        moved_at = Transition.objects.filter(operation=operation).latest("id").at
        pause = (Operation.objects.get().run_at - moved_at).total_seconds()
        # Before the third attempt the job waits 15 s, and up to as much again.
        assert 15 <= pause <= 30.1

    def test_buries_what_has_no_attempt_left(self):
        expired(attempt=5, runs=5, idempotency_key="k-1")

        assert take_back() == 1

        buried = Operation.objects.get()
        letter = DeadLetter.objects.get()
        assert (buried.status, buried.reason) == ("failed_permanent", "worker_lost")
        assert (letter.reason, letter.category, letter.attempts) == ("worker_lost", "poison", 5)
        assert letter.error_message == "worker-z/9 was lost in run 5"
        assert letter.idempotency_key == "k-1"

    def test_leaves_a_live_lease_alone(self):
        make_operation(status=Status.PROCESSING)

        assert take_back() == 0

    def test_does_not_wait_for_a_finish_that_hangs(self):
        hanging, lost = expired(), expired()

        with meanwhile(lambda: Operation.objects.select_for_update().get(id=hanging.id)):
            assert take_back() == 1

        assert history(lost) == [("processing", "retry_scheduled", "worker_lost")]
        assert history(hanging) == []

    def test_frees_the_lock_of_the_lost_claim(self):
        operation = expired()
        lock.take(operation.resource, token=operation.claim_token, operation_id=operation.id, worker="z/9")

        take_back()

        assert lock.holder(operation.resource) is None
        assert not AfterCommit.objects.exists()

    def test_wakes_who_waits_for_the_resource(self, broker):
        operation = expired()
        make_operation(status="retry_scheduled", reason="lock_contended", resource=operation.resource)

        take_back()

        assert broker.depth() == 1

    def test_lets_another_worker_finish_what_was_lost(self, provider, broker):
        provider.has(version=1)
        operation = expired()
        lock.take(operation.resource, token=operation.claim_token, operation_id=operation.id, worker="z/9")

        take_back()
        relay.publish_due()

        assert broker.deliver().payload[0] == [str(operation.id)]
        assert work(operation).status == "succeeded"
        assert history(operation) == [
            ("processing", "retry_scheduled", "worker_lost"),
            ("retry_scheduled", "processing", ""),
            ("processing", "succeeded", ""),
        ]


class TestEndOverdue:
    @pytest.mark.parametrize("status", ["queued", "retry_scheduled"])
    def test_ends_what_waits_past_its_deadline(self, status):
        operation = make_operation(status=status, deadline_at=ago(seconds=1))

        assert [relay.end_overdue() for _ in range(2)] == [1, 0]

        assert history(operation) == [(status, "failed_permanent", "deadline_passed")]
        assert DeadLetter.objects.get().reason == "deadline_passed"

    def test_ends_as_cancelled_what_its_owner_has_cancelled(self):
        """The run that was asked to stop was lost."""
        operation = make_operation(
            status="retry_scheduled", deadline_at=ago(seconds=1), cancel_requested_at=ago(seconds=9)
        )

        assert relay.end_overdue() == 1

        assert history(operation) == [("retry_scheduled", "ignored", "cancelled")]
        assert not DeadLetter.objects.exists()

    def test_lets_a_run_finish_that_is_under_way(self):
        make_operation(status="processing", deadline_at=ago(seconds=1))

        assert relay.end_overdue() == 0

    def test_leaves_alone_what_has_time(self):
        make_operation()

        assert relay.end_overdue() == 0


class TestRepeatAfterCommit:
    def owe(self, user, **changes):
        stale = [f"inventory:view:{user.pk}"]
        fields = {"operation_id": uuid.uuid4(), "invalidate": stale, "run_at": ago(seconds=1)}
        return AfterCommit.objects.create(**fields | changes)

    def test_does_what_a_killed_worker_left_undone(self):
        user = make_user()
        view.get(user.pk)
        InventoryItem.objects.create(user=user, sku="sword", quantity=1, version=1)
        self.owe(user)

        assert [relay.repeat_after_commit() for _ in range(2)] == [1, 0]

        assert len(view.get(user.pk)["items"]) == 1
        assert not AfterCommit.objects.exists()

    def test_gives_the_worker_time_to_do_it(self):
        self.owe(make_user(), run_at=timezone.now() + timedelta(seconds=2))

        assert relay.repeat_after_commit() == 0

    def test_tells_a_cache_that_was_away_within_two_periods(self, cache_away, settings):
        self.owe(make_user())

        for _ in range(6):
            assert relay.repeat_after_commit() == 0
            owed = AfterCommit.objects.get()
            pause = (owed.run_at - timezone.now()).total_seconds()
            assert pause <= settings.RELAY_PERIOD_SECONDS  # and within another it looks
            AfterCommit.objects.update(run_at=ago(seconds=1))

    @pytest.mark.parametrize("away", ["cache", "locks"])
    def test_waits_once_for_a_store_that_hangs(self, monkeypatch, away):
        asked = []
        fail = {"cache": RedisTimeout(), "locks": StoreAway("x")}[away]

        def ask(*what, **how):
            asked.append(what)
            raise fail

        what = {
            "cache": "tasks.after_commit.cache_writers.invalidate",
            "locks": "tasks.after_commit.lock.hand_over",
        }
        monkeypatch.setattr(what[away], ask)
        for _ in range(3):
            self.owe(make_user(), resource="inventory:user:7", claim_token=uuid.uuid4())

        assert relay.repeat_after_commit() == 0
        assert len(asked) == 1

    def test_tries_again_ever_later(self, locks_away, settings):
        self.owe(make_user(), invalidate=[], resource="inventory:user:7", claim_token=uuid.uuid4())
        pauses = []

        for _ in range(6):
            assert relay.repeat_after_commit() == 0
            owed = AfterCommit.objects.get()
            pauses.append(round((owed.run_at - timezone.now()).total_seconds()))
            AfterCommit.objects.update(run_at=ago(seconds=1))

        # RELAY_PERIOD_SECONDS (2) doubled each time, up to half a minute.
        assert pauses == [2, 4, 8, 16, 30, 30]
        assert owed.tries == 6

    def test_does_the_rest_when_one_cannot_be_done(self, locks_away):
        user = make_user()
        view.get(user.pk)
        InventoryItem.objects.create(user=user, sku="sword", quantity=1, version=1)
        self.owe(user, invalidate=[], resource="inventory:user:7", claim_token=uuid.uuid4())
        self.owe(user)

        assert relay.repeat_after_commit() == 1

        assert len(view.get(user.pk)["items"]) == 1
        assert AfterCommit.objects.count() == 1


class TestTwoRelays:
    """Any number may run at once: each row is taken by one of them."""

    def test_publish_each_row_once(self, broker):
        for _ in range(30):
            make_operation(published_at=None)

        assert sum(together(relay.publish_due, relay.publish_due, relay.publish_due)) == 30

        assert broker.depth() == 30

    def test_take_each_lease_back_once(self):
        for _ in range(10):
            expired()

        assert sum(together(take_back, relay.take_back)) == 10

        assert Transition.objects.count() == 10

    def test_end_each_operation_once(self):
        for _ in range(10):
            make_operation(deadline_at=ago(seconds=1))

        assert sum(together(relay.end_overdue, relay.end_overdue)) == 10

        assert DeadLetter.objects.count() == 10

    def test_do_each_debt_once(self):
        for _ in range(20):
            AfterCommit.objects.create(operation_id=uuid.uuid4(), run_at=ago(seconds=1))

        assert sum(together(relay.repeat_after_commit, relay.repeat_after_commit)) == 20


class TestCommand:
    def test_says_what_each_duty_did(self):
        make_operation(published_at=None)
        said = StringIO()

        call_command("relay", "--once", stdout=said)

        lines = said.getvalue().splitlines()
        assert [line.partition(":")[0] for line in lines] == [duty.__name__ for duty in relay.DUTIES]
        assert "publish_due: 1" in lines


class TestOneDuty:
    def test_that_takes_too_long_keeps_no_other_from_its_turn(self):
        def slow():
            with connection.cursor() as cursor:
                cursor.execute("SET statement_timeout = 50")
                try:
                    cursor.execute("SELECT pg_sleep(5)")
                finally:
                    cursor.execute("RESET statement_timeout")

        assert command._one_duty(slow) == 0

    def test_tells_when_the_database_is_away(self):
        def away():
            raise OperationalError("the connection is lost")

        with pytest.raises(OperationalError):
            command._one_duty(away)
