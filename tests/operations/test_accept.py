"""Keys, fingerprints, and the one statement that decides which request was first."""

from threading import Event

import pytest
from django.db import transaction

from operations import accept
from operations.accept import KeyInProgress, KeyReused, VersionMoved
from operations.models import IdempotencyRecord, Operation, OperationData, ResourceFence, Transition
from tests.factories import make_request, make_user
from tests.threads import aside


def nothing_was_written():
    tables = (Operation, OperationData, IdempotencyRecord, Transition)
    return not any(table.objects.exists() for table in tables)


@pytest.mark.django_db
class TestAccept:
    def test_makes_an_operation_of_a_new_key(self, user):
        operation, created = accept.accept(make_request(user, request_id="r-1", correlation_id="c-1"))[:2]

        assert created is True
        assert (operation.owner, operation.idempotency_key) == (user, "k-1")
        assert (operation.request_id, operation.correlation_id) == ("r-1", "c-1")
        assert (operation.max_attempts, operation.resource) == (5, f"inventory:user:{user.pk}")
        assert Transition.objects.get().actor == f"user:{user.pk}"

    def test_lets_the_request_id_stand_in_for_the_correlation_id(self, user):
        operation = accept.accept(make_request(user, request_id="r-1")).operation

        assert operation.correlation_id == "r-1"

    def test_gives_a_repeat_the_same_operation(self, user):
        first = accept.accept(make_request(user)).operation

        again, created = accept.accept(make_request(user))[:2]

        assert (again.id, created) == (first.id, False)
        assert (Operation.objects.count(), Transition.objects.count()) == (1, 1)

    def test_refuses_another_body_under_the_same_key(self, user):
        accept.accept(make_request(user))

        with pytest.raises(KeyReused):
            accept.accept(make_request(user, fingerprint="v1:of-another-body"))

        assert Operation.objects.count() == 1

    def test_never_lets_the_keys_of_two_users_meet(self, user):
        mine = accept.accept(make_request(user)).operation

        theirs, created = accept.accept(make_request(make_user(), fingerprint="v1:of-another-body"))[:2]

        assert created is True
        assert theirs.id != mine.id

    def test_refuses_when_the_seen_version_has_moved_and_keeps_the_key_free(self, user):
        ResourceFence.objects.create(resource=f"inventory:user:{user.pk}", applied_version=5)

        with pytest.raises(VersionMoved, match="no longer at version 4"):
            accept.accept(make_request(user, seen_version="4"))

        assert nothing_was_written()
        assert accept.accept(make_request(user, seen_version="5")).created is True

    def test_repeats_even_when_the_version_has_moved_since(self, user):
        first = accept.accept(make_request(user, seen_version="0")).operation
        ResourceFence.objects.create(resource=f"inventory:user:{user.pk}", applied_version=5)

        again, created = accept.accept(make_request(user, seen_version="0"))[:2]

        assert (again.id, created) == (first.id, False)


@pytest.mark.django_db(transaction=True)
class TestAcceptForOthers:
    """What is decided by commits: the message, the rollback, the wait for a rival."""

    def test_sends_the_message_after_the_commit(self, user, broker):
        with transaction.atomic():
            accept.accept(make_request(user))
            assert broker.depth() == 0

        assert broker.depth() == 1

    def test_logs_a_digest_of_the_key_and_not_the_key(self, user, caplog):
        with caplog.at_level("INFO", logger="operations.accept"):
            accept.accept(make_request(user, key="the-clients-own-key"))

        [line] = [record for record in caplog.records if record.message == "operation.accepted"]
        # The first 12 digits of the key's SHA-256.
        assert line.idempotency_key_hash == "07675270b96c"
        assert "the-clients-own-key" not in str(vars(line))

    def test_sends_no_message_when_plenty_wait(self, user, broker, settings):
        settings.PLENTY_OF_MESSAGES = 2

        accepted = [accept.accept(make_request(user, key=f"k-{n}")).operation for n in range(4)]

        assert [operation.published_at is None for operation in accepted] == [False, False, True, True]
        assert broker.depth() == 2

    def test_leaves_nothing_when_its_transaction_is_rolled_back(self, user, broker):
        with transaction.atomic():
            accept.accept(make_request(user))
            transaction.set_rollback(True)

        assert nothing_was_written()
        assert broker.depth() == 0

    def test_leaves_nothing_when_it_fails(self, user, broker, settings):
        settings.CRASHPOINTS = {"accept.before_insert": "raise"}
        with pytest.raises(Exception, match=r"accept\.before_insert"):
            accept.accept(make_request(user))
        settings.CRASHPOINTS = {}

        assert nothing_was_written()
        assert broker.depth() == 0
        assert accept.accept(make_request(user)).created is True

    @pytest.mark.parametrize("fingerprint", ["v1:of-the-first-body", "v1:of-another-body"])
    def test_waits_only_so_long_for_a_first_that_does_not_commit(self, user, first_uncommitted, fingerprint):
        with first_uncommitted(make_request(user)), pytest.raises(KeyInProgress):
            accept.accept(make_request(user, fingerprint=fingerprint))

        assert Operation.objects.count() == 1

    def test_does_not_wait_for_another_key(self, user, first_uncommitted):
        with first_uncommitted(make_request(user)):
            assert accept.accept(make_request(user, key="k-2")).created is True

    def test_takes_the_place_of_a_first_that_was_rolled_back(self, user):
        inserted, failing = Event(), Event()

        def fail():
            with transaction.atomic():
                accept.accept(make_request(user))
                inserted.set()
                failing.wait(10)
                transaction.set_rollback(True)

        first = aside(fail)
        inserted.wait(10)
        failing.set()

        assert accept.accept(make_request(user)).created is True
        first.result(10)
        assert Operation.objects.count() == 1


@pytest.mark.django_db
class TestFindRepeat:
    def test_finds_nothing_for_a_new_key(self, user):
        assert accept.find_repeat(make_request(user)) is None

    def test_refuses_another_request(self, user):
        accept.accept(make_request(user))

        with pytest.raises(KeyReused):
            accept.find_repeat(make_request(user, fingerprint="v1:of-another-body"))


@pytest.mark.django_db
class TestAppliedVersion:
    def test_is_zero_for_what_was_never_written(self):
        assert accept.applied_version("inventory:user:7") == 0

    def test_is_zero_for_what_was_only_claimed(self):
        ResourceFence.objects.create(resource="inventory:user:7", fence=1)

        assert accept.applied_version("inventory:user:7") == 0

    def test_is_the_last_one_written(self):
        ResourceFence.objects.create(resource="inventory:user:7", applied_version=9)

        assert accept.applied_version("inventory:user:7") == 9
