"""A replay and a claim behind it, at the same moment, each about to make the other impossible.

Only an operation whose job skips the dead can overtake; and only one that nobody has overtaken is replayed.
"""

import uuid

import pytest
from django.db import connection

from operations import jobs, lifecycle, replays
from operations.models import Operation
from operations.order import OVERTAKEN
from operations.replays import Refused
from tests.factories import make_dead_letter, make_job, make_operation, work
from tests.threads import aside, meanwhile, others_wait, together, until

pytestmark = pytest.mark.django_db(transaction=True)

RESOURCE = "tests:line:7"
ROUNDS = 40


@pytest.fixture
def job(monkeypatch):
    job = make_job(resource=RESOURCE, ordered=True, on_dead="skip")
    monkeypatch.setitem(jobs._registry, job.name, job)
    return job


@pytest.fixture
def line(job):
    return stand(job)


def stand(job, resource=RESOURCE):
    """Make a dead one and one behind it, which may overtake; give the letter of the first, and the second."""
    fields = {"job": job, "resource": resource}
    first = make_operation(resource_seq=1, status="failed_permanent", **fields)
    return make_dead_letter(first), make_operation(resource_seq=2, **fields)


def replay(letter):
    try:
        return replays.replay(letter.id, actor="user:1", reason="mended")
    except Refused:
        return None


def claim(second):
    return lifecycle.claim(
        second.id, job_type=second.job_type, worker="a/1", token=uuid.uuid4(), skips_in=second.resource
    )


class TestReplay:
    def test_waits_for_a_claim_that_overtakes_it_and_is_refused(self, line):
        letter, second = line

        with meanwhile(lambda: claim(second)):
            replaying = aside(lambda: replay(letter))
            until(others_wait)

        assert replaying.result() is None
        assert statuses() == ["failed_permanent", "processing"]

    def test_lets_nobody_overtake_it_once_it_is_made(self, line):
        letter, second = line

        with meanwhile(lambda: replay(letter)):
            claiming = aside(lambda: claim(second))
            until(others_wait)

        assert claiming.result() is None
        assert statuses() == ["queued", "queued"]

    def test_is_never_made_beside_a_claim_that_overtakes_it(self, job):
        for number in range(ROUNDS):
            letter, second = stand(job, f"tests:line:{number}")

            replayed, claimed = together(
                lambda letter=letter: replay(letter), lambda second=second: claim(second)
            )

            assert (replayed is None) != (claimed is None)

    def test_waits_for_a_worker_as_well(self, line, job):
        """The run tells its claim that it may overtake."""
        letter, second = line

        with meanwhile(lambda: replay(letter)):
            working = aside(lambda: work(second, job))
            until(others_wait)

        assert working.result().status == "queued"

    def test_keeps_no_other_line_waiting(self, line, job):
        letter, _ = line
        _, elsewhere = stand(job, "tests:line:8")

        with meanwhile(lambda: replay(letter)):
            assert claim(elsewhere) is not None


class TestOvertaking:
    def test_is_looked_up_by_the_place_in_line(self, line):
        """Among many that are done, whatever the planner thinks of a table that is small."""
        letter, _ = line

        with connection.cursor() as cursor:
            cursor.execute("SET enable_seqscan = off")
            cursor.execute(f"EXPLAIN {OVERTAKEN}", {"id": letter.operation_id})
            plan = "\n".join(row[0] for row in cursor.fetchall())
            cursor.execute("RESET enable_seqscan")

        assert "operation_in_line" in plan


def statuses():
    return list(Operation.objects.order_by("resource_seq").values_list("status", flat=True))
