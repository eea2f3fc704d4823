"""The table of moves is the only source of moves."""

import itertools
import uuid

import pytest

from operations import lifecycle
from operations.arrows import Arrow, IllegalMove
from operations.models import FINAL, TRANSIENT, WAITING, Category, Operation, Reason, Status

LEGAL = {(move.source, move.to) for move in Operation.MOVES}
ILLEGAL = sorted(set(itertools.product(Status.values, Status.values)) - LEGAL)
ARROWS = {name: arrow for name, arrow in vars(lifecycle).items() if isinstance(arrow, Arrow)}


class TestMoves:
    def test_know_six_statuses(self):
        assert set(Status.values) == {*WAITING, Status.PROCESSING, *FINAL}
        assert len(Status.values) == 6

    def test_begin_outside(self):
        assert [move.to for move in Operation.MOVES if move.source == ""] == [Status.QUEUED]

    @pytest.mark.parametrize("final", [Status.SUCCEEDED, Status.IGNORED])
    def test_never_leave_a_final_status(self, final):
        assert not [move for move in Operation.MOVES if move.source == final]

    def test_take_their_reasons_from_the_closed_list(self):
        given = {reason for move in Operation.MOVES for reason in move.reasons}

        assert given - {""} <= set(Reason.values)

    def test_name_each_pair_once(self):
        pairs = [(move.source, move.to, reason) for move in Operation.MOVES for reason in move.reasons]

        assert len(pairs) == len(set(pairs))

    def test_let_every_transient_category_be_tried_again(self):
        again = {
            reason
            for move in Operation.MOVES
            if (move.source, move.to) == (Status.PROCESSING, Status.RETRY_SCHEDULED)
            for reason in move.reasons
        }

        assert set(TRANSIENT) <= again


class TestReason:
    """Reasons and categories are stored: one that was ever used keeps its name."""

    def test_is_one_of_a_closed_list(self):
        assert set(Reason.values) == {
            *("accepted", "replayed", "interrupted", "reconciled"),
            *("dependency_unavailable", "timeout", "rate_limited", "conflict", "outcome_unknown"),
            *("lock_contended", "dependency_held", "worker_lost", "unknown_job_type", "unsupported_schema"),
            *("invalid_input", "business_rejected", "not_found", "permission", "bug", "compensation_failed"),
            *("attempts_exhausted", "timeout_exhausted", "deadline_passed"),
            *("stale_version", "duplicate", "cancelled", "discarded", "superseded"),
        }


class TestCategory:
    def test_is_one_of_a_closed_list(self):
        assert set(Category.values) == {
            *("dependency_unavailable", "timeout", "rate_limited", "conflict", "outcome_unknown"),
            *("invalid_input", "not_found", "permission", "business_rejected", "bug"),
            *("poison", "cancelled", "none"),
        }


class TestArrow:
    @pytest.mark.parametrize(("source", "to"), ILLEGAL)
    def test_is_refused_for_a_pair_that_is_no_move(self, source, to):
        with pytest.raises(IllegalMove, match="no move leads from"):
            Arrow(sources=(source,), to=to, change="version = o.version")

    def test_is_refused_if_one_of_its_sources_is_wrong(self):
        with pytest.raises(IllegalMove, match="SUCCEEDED"):
            Arrow(sources=(Status.QUEUED, Status.SUCCEEDED), to=Status.RETRY_SCHEDULED, change="")

    @pytest.mark.parametrize("name", sorted(ARROWS))
    def test_refuses_a_reason_that_is_not_its_moves(self, name):
        with pytest.raises(IllegalMove, match="'superseded' is no reason to move from"):
            ARROWS[name](uuid.uuid4(), actor="test", reason="superseded")
