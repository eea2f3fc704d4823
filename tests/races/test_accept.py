"""Many requests at one moment: the unique constraint decides, so these tests need real connections.

A first request is held between its insert and its commit, so that the others are sure to meet it there.
"""

from collections import Counter
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from operations import accept, retention
from operations.accept import KeyReused
from operations.models import IdempotencyRecord, Operation, Transition
from tests.factories import make_request, make_user
from tests.threads import aside, meanwhile, others_wait, together, until

pytestmark = pytest.mark.django_db(transaction=True)

CROWD = 50
SYNC = "/v1/inventory/sync"


def post(client, key="k-1"):
    return client.post(SYNC, "{}", content_type="application/json", headers={"Idempotency-Key": key})


class TestAccept:
    def test_makes_one_operation_of_fifty_equal_requests(self, api, broker):
        answers = together(*[lambda: post(api)] * CROWD)

        assert Counter(answer.status_code for answer in answers) == {202: CROWD}
        assert len({answer.json()["operation_id"] for answer in answers}) == 1
        assert [answer.get("Idempotent-Replayed") for answer in answers].count(None) == 1
        assert (Operation.objects.count(), Transition.objects.count(), broker.depth()) == (1, 1, 1)

    def test_makes_two_of_as_many_with_one_key_of_two_users(self, user, broker):
        owners = (user, make_user())
        asks = [lambda owner=owners[n % 2]: accept.accept(make_request(owner)) for n in range(CROWD)]

        accepted = together(*asks)

        made = {each.operation.id: each.operation.owner_id for each in accepted}
        assert sorted(made.values()) == sorted(owner.pk for owner in owners)
        assert [each.created for each in accepted].count(True) == 2

    def test_lets_all_wait_for_a_first_that_commits(self, user, broker):
        request = make_request(user)

        with meanwhile(lambda: accept.accept(request)):
            crowd = aside(lambda: together(*[lambda: accept.accept(request)] * CROWD))
            until(lambda: others_wait(CROWD))
        accepted = crowd.result(10)

        assert {each.created for each in accepted} == {False}
        assert {each.operation.id for each in accepted} == {Operation.objects.get().id}
        assert (IdempotencyRecord.objects.count(), broker.depth()) == (1, 1)

    def test_refuses_other_bodies_that_waited_for_the_first(self, user, broker):
        def other(number):
            with pytest.raises(KeyReused):
                accept.accept(make_request(user, fingerprint=f"v1:of-body-{number}"))

        with meanwhile(lambda: accept.accept(make_request(user))):
            crowd = aside(lambda: together(*[lambda number=number: other(number) for number in range(5)]))
            until(lambda: others_wait(5))
        crowd.result(10)

        assert (Operation.objects.count(), broker.depth()) == (1, 1)

    def test_takes_a_key_over_once_that_is_over(self, user, broker):
        """C17, part 1."""
        before = accept.accept(make_request(user)).operation
        Operation.objects.update(status="succeeded", finished_at=timezone.now() - timedelta(days=2))

        accepted = together(*[lambda: accept.accept(make_request(user))] * 10)

        assert [each.created for each in accepted].count(True) == 1
        assert len({each.operation.id for each in accepted} - {before.id}) == 1
        assert (Operation.objects.count(), IdempotencyRecord.objects.count(), broker.depth()) == (2, 1, 2)

    def test_takes_a_key_over_that_the_purge_is_deleting(self, user):
        before = accept.accept(make_request(user)).operation
        Operation.objects.update(status="succeeded", finished_at=timezone.now() - timedelta(days=2))
        retention.begin_again()

        with meanwhile(retention.purge_keys):
            again = aside(lambda: accept.accept(make_request(user)))
            until(others_wait)
        accepted = again.result(10)

        assert accepted.created is True
        assert IdempotencyRecord.objects.get().operation_id == accepted.operation.id != before.id

    def test_keeps_the_record_that_is_being_taken_over_from_the_purge(self, user):
        accept.accept(make_request(user))
        Operation.objects.update(status="succeeded", finished_at=timezone.now() - timedelta(days=2))
        retention.begin_again()

        with meanwhile(lambda: accept.accept(make_request(user))):
            assert retention.purge_keys() == 0

        assert IdempotencyRecord.objects.get().operation.status == "queued"

    def test_keeps_other_users_and_other_keys_out_of_it(self, user):
        others = [make_user() for _ in range(3)]

        with meanwhile(lambda: accept.accept(make_request(user))), connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '100ms'")
            created = [accept.accept(make_request(other)).created for other in others]
            created.append(accept.accept(make_request(user, key="k-2")).created)

        assert created == [True] * 4
        assert Operation.objects.count() == 5
        connection.close()
