"""The judge finds what is planted for it, and nothing else."""

from types import SimpleNamespace

import pytest
from django.db import connection

from operations.models import Operation
from tests.factories import make_operation
from tests.faults.effects import Call
from tests.nemesis import judge
from tests.probes import lines, marks

pytestmark = pytest.mark.django_db

NOWHERE = "0197f000-0000-7000-8000-000000000000"
RESOURCE = "probe:line:one"


class Rows:
    """As much of a lab as the judge asks, on the tests' own database."""

    def __init__(self):
        self.calls = {}
        self.effects = SimpleNamespace(by_ref=lambda: self.calls)
        for table in (marks.TABLE, lines.TABLE):
            self.rows(table)

    def rows(self, query, *values):
        with connection.cursor() as cursor:
            cursor.execute(query, values)
            if cursor.description is None:
                return []
            names = [column.name for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def mark(self, operation, what="done", ref="r-1"):
        self.rows(
            "INSERT INTO probe_mark (ref, what, operation_id) VALUES (%s, %s, %s)", ref, what, operation.id
        )

    def take_turn(self, operation, fence=None):
        self.rows(
            "INSERT INTO probe_line (what, operation_id, fence) VALUES ('one', %s, %s)", operation.id, fence
        )


@pytest.fixture
def lab():
    return Rows()


@pytest.fixture
def life(lab):
    """One that has succeeded and says so."""
    operation = make_operation(status="succeeded", job_type="probe.life")
    lab.mark(operation)
    return operation


def make_turn(seq):
    return make_operation(status="succeeded", job_type="probe.turn", resource=RESOURCE, resource_seq=seq)


def said(found):
    assert len(found) == 1, found
    return found[0]


class TestLost:
    def test_is_nothing_that_has_ended(self, lab, life):
        assert judge.lost(lab, {str(life.id)}) == []

    def test_is_what_was_answered_and_does_not_exist(self, lab):
        assert said(judge.lost(lab, {NOWHERE})) == f"{NOWHERE} was answered and does not exist"

    @pytest.mark.parametrize("status", ["queued", "processing", "retry_scheduled", "failed_permanent"])
    def test_is_what_does_not_end(self, lab, status):
        operation = make_operation(status=status)

        assert status in said(judge.lost(lab, {str(operation.id)}))


class TestDoubled:
    def test_is_nothing_that_happened_once(self, lab, life):
        lab.calls = {"r-1": [Call("r-1", str(life.id), run, "k-1") for run in "12"]}

        assert judge.doubled(lab, {"k-1": {str(life.id)}}) == []

    def test_is_what_was_written_twice(self, lab, life):
        lab.mark(life)

        assert said(judge.doubled(lab, {})) == "r-1 was marked done 2 times"

    def test_is_an_operation_that_wrote_twice(self, lab):
        turn = make_turn(1)
        for _ in range(2):
            lab.take_turn(turn)

        assert said(judge.doubled(lab, {})) == f"{turn.id} wrote 2 times"

    def test_is_a_follow_up_that_was_made_twice(self, lab, life):
        Operation.objects.filter(id__in=[make_turn(1).id, make_turn(2).id]).update(parent=life.id)

        assert said(judge.doubled(lab, {})) == f"operation {life.id} had 2 follow-ups"

    def test_is_a_key_that_made_two_operations(self, lab, life):
        for _ in range(2):
            make_operation(owner=life.owner, idempotency_key="k-1")

        assert said(judge.doubled(lab, {})) == "key k-1 made 2 operations"

    def test_is_a_key_that_was_answered_with_two_operations(self, lab):
        assert said(judge.doubled(lab, {"k-1": {"a", "b"}})) == "key k-1 was answered with ['a', 'b']"

    def test_is_an_effect_under_two_keys(self, lab):
        lab.calls = {"r-1": [Call("r-1", NOWHERE, "1", key) for key in ("k-1", "k-2")]}

        assert said(judge.doubled(lab, {})) == "r-1 had its effect under 2 keys"


class TestByTraces:
    def test_finds_nothing_where_all_is_in_order(self, lab, life):
        for seq in (1, 2):
            lab.take_turn(make_turn(seq))

        assert judge.by_traces(lab) == []

    def test_finds_a_success_that_left_no_trace(self, lab, life):
        lab.rows("DELETE FROM probe_mark")

        assert said(judge.by_traces(lab)) == f"I2: {life.id} is succeeded and left 0 rows"

    def test_finds_a_trace_of_what_did_not_succeed(self, lab, life):
        Operation.objects.filter(id=life.id).update(status="ignored")

        assert said(judge.by_traces(lab)) == f"I2: {life.id} is ignored and left 1 rows"

    def test_finds_who_came_before_its_turn(self, lab):
        second, first = make_turn(2), make_turn(1)
        for turn in (second, first):
            lab.take_turn(turn)

        assert said(judge.by_traces(lab)) == f"order: {first.id} came before its turn on one"

    def test_finds_what_was_written_under_an_older_fence(self, lab):
        for seq, fence in ((1, 2), (2, 1)):
            lab.take_turn(make_turn(seq), fence)

        assert said(judge.by_traces(lab)) == "I4: one was written under fence 1 after 2"
