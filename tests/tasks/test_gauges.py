"""What the relay samples: it is what the database holds, and what is no longer there is zero."""

import logging
import time

import pytest
from prometheus_client import REGISTRY

from operations.models import DeadLetter, Effect, Resolution, Status
from tasks import gauges
from tests.factories import HOUR, earlier, make_dead_letter, make_job, make_operation

pytestmark = pytest.mark.django_db

JOB = "inventory.sync"
HOUR_SECONDS = 3_600


@pytest.fixture(autouse=True)
def sampled(monkeypatch):
    """Sample as often as a test asks, and leave no sample of its rows to the next test."""
    monkeypatch.setattr(gauges, "PERIOD_SECONDS", 0)
    monkeypatch.setattr(gauges, "_due_at", 0)
    gauges.sample()


def gauge(name, **labels):
    return REGISTRY.get_sample_value(name, labels)


def depth(state):
    return gauge("ops_queue_depth", queue=JOB, state=state)


def dead(reason, job_type=JOB):
    return gauge("ops_dlq_depth", job_type=job_type, reason=reason)


class TestSample:
    def test_counts_work_by_its_state(self):
        for status in (Status.QUEUED, Status.QUEUED, Status.RETRY_SCHEDULED, Status.PROCESSING):
            make_operation(status=status)
        make_operation(status=Status.SUCCEEDED)

        assert gauges.sample() == 0

        assert [depth(state) for state in gauges.STATES] == [2, 1, 1, 0]

    def test_says_since_when_the_oldest_is_due(self):
        make_operation()
        oldest = make_operation()
        earlier(oldest, "run_at")

        gauges.sample()

        age = time.time() - gauge("ops_queue_oldest_ready_timestamp_seconds", queue=JOB)
        assert age == pytest.approx(HOUR_SECONDS, abs=5)

    def test_finds_nothing_old_where_nothing_is_due(self):
        later = make_operation(status=Status.RETRY_SCHEDULED)
        earlier(later, "run_at", by=-HOUR)
        running = make_operation(status=Status.PROCESSING)
        earlier(running, "run_at")

        gauges.sample()

        age = time.time() - gauge("ops_queue_oldest_ready_timestamp_seconds", queue=JOB)
        assert age == pytest.approx(0, abs=5)

    def test_counts_dead_letters_by_reason_and_knows_the_oldest(self):
        for reason in ("bug", "bug", "worker_lost", "attempts_exhausted"):
            make_dead_letter(reason=reason)
        DeadLetter.objects.filter(reason="worker_lost").update(created_at="2026-01-01T00:00:00Z")

        gauges.sample()

        assert (dead("bug"), dead("worker_lost"), dead("attempts_exhausted")) == (2, 1, 1)
        assert gauge("ops_dlq_oldest_timestamp_seconds", job_type=JOB) == 1_767_225_600  # date -d 2026-01-01Z

    def test_leaves_out_what_was_expected_or_is_seen_to(self):
        make_dead_letter(reason="business_rejected", expected=True)
        make_dead_letter(resolution=Resolution.REPLAYING)
        make_dead_letter(resolution=Resolution.DISCARDED, resolved_at="2026-01-01T00:00:00Z")

        gauges.sample()

        assert sum(dead(reason) for reason in gauges.REASONS) == 0

    def test_forgets_a_reason_with_no_more_dead_letters(self):
        letter = make_dead_letter()
        gauges.sample()
        assert dead("bug") == 1

        letter.delete()
        gauges.sample()

        assert dead("bug") == 0
        age = time.time() - gauge("ops_dlq_oldest_timestamp_seconds", job_type=JOB)
        assert age == pytest.approx(0, abs=5)

    def test_has_no_label_for_a_job_that_no_code_knows(self):
        stranger = make_job(name="tests.stranger")
        make_operation(job=stranger)
        make_dead_letter(make_operation(job=stranger, status=Status.FAILED_PERMANENT))

        gauges.sample()

        assert gauge("ops_queue_depth", queue="unknown", state="queued") == 1
        assert dead("bug", job_type="unknown") == 1
        assert dead("bug", job_type="tests.stranger") is None

    def test_waits_for_its_period(self, monkeypatch):
        monkeypatch.setattr(gauges, "_due_at", time.monotonic() + HOUR_SECONDS)
        make_dead_letter()

        gauges.sample()

        assert dead("bug") == 0

    def test_gives_up_on_a_count_that_takes_too_long(self, monkeypatch, caplog):
        monkeypatch.setattr(gauges, "BOUND_SECONDS", 0.01)
        monkeypatch.setattr(gauges, "COUNT_WORK", "SELECT pg_sleep(10)")

        with caplog.at_level(logging.WARNING):
            assert gauges.sample() == 0

        assert [record.message for record in caplog.records] == ["gauges.not_sampled"]


class TestUnknown:
    def test_outcomes_are_counted_by_dependency(self):
        operation = make_operation()
        Effect.objects.create(
            operation=operation,
            step="charge",
            kind="outside",
            certainty="maybe_sent",
            key="k",
            request={},
            run=1,
            first_sent_at="2026-01-01T00:00:00Z",
            sent_at="2026-01-02T00:00:00Z",
        )

        gauges.sample()

        provider, other = "inventory-provider", "payments-gateway"
        assert gauge("ops_outcome_unknown_operations", dependency=provider) == 1
        assert gauge("ops_outcome_unknown_operations", dependency=other) == 0
        # date -d 2026-01-01Z
        assert gauge("ops_outcome_unknown_oldest_timestamp_seconds", dependency=provider) == 1_767_225_600

    def test_outcomes_that_are_known_are_gone(self):
        gauges.sample()

        assert gauge("ops_outcome_unknown_operations", dependency="inventory-provider") == 0
