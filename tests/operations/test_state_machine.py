"""The lifecycle on PostgreSQL against a small model of it, in whatever order Hypothesis thinks of.

Claims are held as workers hold them: some finish, some finish too late, some are never heard of again. Time
passes by moving every time in the database into the past, so nobody sleeps.
"""

import uuid
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from operations import accept, cancel, claims, dead_letters, jobs, lifecycle, reading, replays, verify
from operations.accept import KeyReused
from operations.cancel import NotCancellable
from operations.claims import Claim
from operations.jobs import Backoff
from operations.models import DeadLetter, Operation, Resolution
from operations.replays import Refused
from tasks import backlog, outcome, relay, retry
from tasks.base import task_of
from tasks.drain import Interrupted
from tasks.retry import CallFailed
from tests.cleaning import delete_rows
from tests.factories import make_failure, make_job, make_request, make_user, take_back, work

pytestmark = pytest.mark.django_db(transaction=True)

# Seconds. Time passes in tens, and everything that is waited for ends at a multiple of five: the moments that
# a real run adds by taking its time never decide.
STEPS = (10, 10, 10, 10, 30, 30, 30, 30, 30, 120, 3_600)
LEASE, HARD_LIMIT, DEADLINE, POLL = 30, 40, 3_600, 15
PAUSES = (5, 15)
MOST_INTERRUPTIONS = 2
TIMES = {
    "operations_operation": (
        "run_at",
        "deadline_at",
        "lease_expires_at",
        "published_at",
        "first_started_at",
        "started_at",
        "finished_at",
        "created_at",
    ),
    "operations_transition": ("at",),
    "operations_aftercommit": ("run_at", "created_at"),
}
ENDS = ("finish", "finish", "fail", "fail", "fail_for_good", "hand_back", "hand_back", "beat", "die", "die")
ROWS = """
    SELECT id, status, reason, runs, attempt, interruptions, replays,
        status IN ('queued', 'retry_scheduled') AND run_at <= clock_timestamp()
    FROM operations_operation"""
REFUSALS = r"there is no dead letter|dead letter \d+ is .* already|is .*, so nothing can be"
GONE = CallFailed("not_found", "HTTP 404")
AWAY = CallFailed("dependency_unavailable", "HTTP 503")


class Answer:
    """What the outside says at the next call."""

    given: Any = None

    def __call__(self, run: Any, **payload: Any) -> Any:
        if isinstance(self.given, Exception):
            raise self.given
        return {"version": self.given}


ANSWER = Answer()
JOB = make_job(
    name="tests.life",
    handler=lambda run, answer, **payload: answer,
    call=ANSWER,
    version=itemgetter("version"),
    resource="tests:{user_id}",
    retry=Backoff(*PAUSES),
    soft_limit=HARD_LIMIT - 1,
    hard_limit=HARD_LIMIT,
    deadline=timedelta(seconds=DEADLINE),
)
MOST_OPERATIONS = 8
SELDOM = 5  # one pick in so many looks at nothing
picks = st.integers(0, 10 * SELDOM)
answers = st.sampled_from([1, 2, 3, AWAY, AWAY, AWAY, GONE])


class Held(NamedTuple):
    """A claim, as a worker holds it."""

    claim: Claim
    worker: str


@dataclass
class Expected:
    """One operation as it should be. Times are seconds since the machine began."""

    resource: str
    deadline: int
    run_at: int
    status: str = "queued"
    reason: str = "accepted"
    runs: int = 0
    attempt: int = 0
    interruptions: int = 0
    replays: int = 0
    losses: int = 0
    token: uuid.UUID | None = None
    lease: int = 0
    started: int = 0
    fence: int = 0
    cancel_requested: bool = False

    @property
    def waits(self) -> bool:
        return self.status in ("queued", "retry_scheduled")

    def as_row(self, now: int) -> list[Any]:
        is_due = self.waits and self.run_at <= now
        counts = (self.runs, self.attempt, self.interruptions, self.replays)
        return [self.status, self.reason, *counts, is_due]

    def is_forsaken(self, now: int) -> bool:
        """Say whether the relay has to do something about it."""
        return (self.waits and self.deadline <= now) or (self.status == "processing" and self.lease <= now)

    def is_claimable(self, now: int) -> bool:
        return self.waits and self.run_at <= now < self.deadline and self.attempts_left

    @property
    def attempts_left(self) -> bool:
        return self.attempt <= len(PAUSES)

    def is_held_by(self, claim: Claim, now: int) -> bool:
        return self.status == "processing" and self.token == claim.token and now < self.lease

    def claimed(self, now: int, *, token: uuid.UUID | None, fence: int) -> None:
        self.become("processing")
        self.runs += 1
        self.attempt += 1
        self.token, self.lease, self.started, self.fence = token, now + LEASE, now, fence

    def become(self, status: str, reason: str = "") -> None:
        self.status, self.reason = status, reason

    def again(self, reason: str, at: int) -> None:
        self.become("retry_scheduled", reason)
        self.run_at = at

    def pause(self) -> int:
        return PAUSES[min(self.attempt - 1, len(PAUSES) - 1)]

    def failed(self, category: str, now: int) -> None:
        """A transient failure is tried again while attempts are left."""
        if category == "not_found":
            self.become("failed_permanent", category)
        elif self.attempts_left:
            self.again(category, now + self.pause())
        else:
            self.become("failed_permanent", f"{'timeout' if category == 'timeout' else 'attempts'}_exhausted")

    def lost(self, now: int) -> None:
        if self.attempts_left:
            self.again("worker_lost", now + (self.pause() if self.losses else 0))
            self.losses += 1
        else:
            self.become("failed_permanent", "worker_lost")

    def handed_back(self, now: int) -> None:
        free = self.interruptions < MOST_INTERRUPTIONS
        if not free and not self.attempts_left:
            self.become("failed_permanent", "attempts_exhausted")
            return
        self.attempt -= free
        self.interruptions += 1
        self.become("queued", "interrupted")
        self.run_at = now

    def replayed(self, now: int) -> None:
        self.become("queued", "replayed")
        self.attempt = self.interruptions = 0
        self.cancel_requested = False
        self.replays += 1
        self.run_at, self.deadline = now, now + DEADLINE


class Life(RuleBasedStateMachine):
    """Two users, a few keys, and whatever can happen to the operations that they name."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.expected: dict[uuid.UUID, Expected] = {}
        self.keys: dict[tuple[int, str], tuple[uuid.UUID, str]] = {}
        self.fences: dict[str, int] = defaultdict(int)
        self.applied: dict[str, tuple[int, uuid.UUID]] = {}
        self.claims: list[Held] = []
        self.users = [make_user(), make_user()]
        self.task = task_of(JOB)

    @initialize()
    def begin_with_some(self) -> None:
        for key in "abc":
            self.accept(user=0, key=key, body="x")

    @precondition(lambda self: len(self.expected) < MOST_OPERATIONS)
    @rule(user=st.integers(0, 1), key=st.sampled_from("abcdef"), body=st.sampled_from("xxy"))
    def accept(self, user: int, key: str, body: str) -> None:
        owner = self.users[user]
        request = make_request(
            owner, job=JOB, key=key, fingerprint=f"v1:{body}", payload={"user_id": owner.pk}
        )
        id, known = self.keys.get((user, key), (None, body))
        if known != body:
            with pytest.raises(KeyReused, match="was used for another request"):
                accept.accept(request)
            return
        accepted = accept.accept(request)
        assert accepted.created is (id is None)
        if id is not None:
            assert accepted.operation.id == id
            return
        self.keys[user, key] = (accepted.operation.id, body)
        self.expected[accepted.operation.id] = Expected(
            f"tests:{owner.pk}", deadline=self.now + DEADLINE, run_at=self.now
        )

    @rule(pick=picks, answer=answers)
    def deliver(self, pick: int, answer: Any) -> None:
        """A message arrives: the first, one of many, or one that is far too late or early."""
        id = self._choose(pick, lambda each: each.waits and each.run_at <= self.now)
        expected = self.expected[id]
        ANSWER.given = answer
        work(Operation(id=id), JOB)
        if expected.waits and expected.cancel_requested:
            expected.become("ignored", "cancelled")
            return
        if not expected.waits or expected.run_at > self.now:
            return
        if expected.deadline <= self.now:
            expected.become("failed_permanent", "deadline_passed")
            return
        self.fences[expected.resource] += 1
        expected.claimed(self.now, token=None, fence=self.fences[expected.resource])
        if isinstance(answer, CallFailed):
            expected.failed(answer.category, self.now)
        elif self._is_news(id, answer):
            self._succeeded(id, answer)
        else:
            applied, _ = self.applied[expected.resource]
            expected.become("ignored", "duplicate" if answer == applied else "stale_version")

    @rule(pick=picks)
    def begin(self, pick: int) -> None:
        """A worker claims, and holds what it claimed until it does something."""
        id = self._choose(pick, lambda each: each.is_claimable(self.now))
        expected = self.expected[id]
        worker = f"worker-{len(self.claims)}/1"
        claim = lifecycle.claim(id, job_type=JOB.name, worker=worker, token=uuid.uuid4())
        assert (claim is not None) == expected.is_claimable(self.now)
        if claim is None:
            return
        self.fences[expected.resource] += 1
        expected.claimed(self.now, token=claim.token, fence=self.fences[expected.resource])
        self.claims.append(Held(claim, worker))

    @precondition(lambda self: self.claims)
    @rule(pick=picks, how=st.sampled_from(ENDS))
    def end(self, pick: int, how: str) -> None:
        """Do with a claim what a worker does, whether it still has it or not."""
        live = [held for held in self.claims if self._is_live(held)]
        pool = live if live and pick % SELDOM else self.claims
        held = pool[pick % len(pool)]
        getattr(self, how)(held, self.expected[held.claim.operation.id])

    def finish(self, held: Held, expected: Expected) -> None:
        id = held.claim.operation.id
        version = self.applied.get(expected.resource, (1, id))[0] + self.now % 3 - 1  # older, the same, newer
        with transaction.atomic():
            done = lifecycle.succeed(
                held.claim, hard_limit=HARD_LIMIT, version=version, digest=f"of {version}"
            )
            if done is not None:
                dead_letters.resolve(done, Resolution.REPLAYED_OK)
        held_still = expected.is_held_by(held.claim, self.now) and self.now < expected.started + HARD_LIMIT
        fenced = held.claim.fence == self.fences[expected.resource]
        assert (done is not None) == (held_still and fenced and self._is_news(id, version))
        if done is not None:
            self._succeeded(id, version)

    def fail(self, held: Held, expected: Expected) -> None:
        self._fail(held, expected, "timeout")

    def fail_for_good(self, held: Held, expected: Expected) -> None:
        self._fail(held, expected, "not_found")

    def _fail(self, held: Held, expected: Expected, category: str) -> None:
        moved, _ = outcome.move(self.task, held.claim, make_failure(category=category))
        if self._was_held(held, moved):
            expected.failed(category, self.now)

    def hand_back(self, held: Held, expected: Expected) -> None:
        moved, _ = outcome.move(self.task, held.claim, Interrupted("the worker ends"))
        if self._was_held(held, moved):
            expected.handed_back(self.now)

    def beat(self, held: Held, expected: Expected) -> None:
        extended = claims.extend(held.claim.operation.id, token=held.claim.token)
        holds = expected.status == "processing" and expected.token == held.claim.token
        assert (extended is not None) == holds, "a lease that nobody has taken back may be renewed"
        if holds:
            expected.lease = self.now + LEASE

    def die(self, held: Held, expected: Expected) -> None:
        """The worker's parent finds its child dead, at once or long after."""
        holds = expected.status == "processing" and expected.token == held.claim.token
        assert relay.free_lost(str(held.claim.operation.id), held.worker) == holds
        if holds:
            expected.lost(self.now)

    @rule(seconds=st.sampled_from(STEPS))
    def pass_time(self, seconds: int) -> None:
        self.now += seconds
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("ALTER TABLE operations_transition DISABLE TRIGGER append_only")
            for table, columns in TIMES.items():
                moved = ", ".join(
                    f"{column} = {column} - make_interval(secs => %(by)s)" for column in columns
                )
                cursor.execute(f"UPDATE {table} SET {moved}", {"by": seconds})
            cursor.execute("ALTER TABLE operations_transition ENABLE TRIGGER append_only")

    @precondition(lambda self: any(each.is_forsaken(self.now) for each in self.expected.values()))
    @rule()
    def relay(self) -> None:
        """Take back what was held too long, and end what waited too long."""
        forsaken = [each for each in self.expected.values() if each.is_forsaken(self.now)]
        lost = [each for each in forsaken if not each.waits]
        assert take_back() == len(lost)
        for expected in lost:
            expected.lost(self.now)
        overdue = [each for each in self.expected.values() if each.waits and each.is_forsaken(self.now)]
        assert relay.end_overdue() == len(overdue)
        for expected in overdue:
            expected.become("failed_permanent", "deadline_passed")

    @rule(pick=picks)
    def put_off(self, pick: int) -> None:
        id = self._choose(pick, lambda each: each.waits and each.run_at <= self.now)
        waiting = lifecycle.wait(id, reason="dependency_unavailable", waiting_for="a store", actor="worker")
        due = self.expected[id].waits and self.expected[id].run_at <= self.now
        assert (waiting is not None) == due
        if waiting is not None:
            self.expected[id].again("dependency_unavailable", self.now + POLL)

    @rule(pick=picks, discard=st.sampled_from([False, False, True]))
    def act(self, pick: int, discard: bool) -> None:
        """Replay or discard the newest dead letter, or see it refused with a sentence."""
        id = self._choose(pick, lambda each: each.status == "failed_permanent")
        expected = self.expected[id]
        act = partial(replays.discard if discard else replays.replay, actor="user:ops", reason="a test")
        letter = DeadLetter.objects.filter(operation_id=id).order_by("-id").first()
        if expected.status != "failed_permanent":
            with pytest.raises(Refused, match=REFUSALS):
                act(0 if letter is None else letter.id)
            return
        act(letter.id)
        if discard:
            expected.become("ignored", "discarded")
        else:
            expected.replayed(self.now)

    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        """Its owner wants it no more: it ends at once, or is asked to."""
        id = self._choose(pick, lambda each: each.waits or each.status == "processing")
        expected = self.expected[id]
        seen = reading.stands(id, owner_id=int(expected.resource.partition(":")[2]))
        if expected.waits:
            assert cancel.cancel(seen).operation.reason == "cancelled"
            expected.become("ignored", "cancelled")
        elif expected.status == "processing":
            assert cancel.cancel(seen).operation.cancel_requested_at is not None
            expected.cancel_requested = True
        elif expected.reason != "cancelled":
            with pytest.raises(NotCancellable, match=f"it is {expected.status} already"):
                cancel.cancel(seen)

    @invariant()
    def rows_are_as_expected(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute(ROWS)
            rows = {id: row for id, *row in cursor.fetchall()}
        assert rows == {id: expected.as_row(self.now) for id, expected in self.expected.items()}

    def teardown(self) -> None:
        """Let the relay do what is left to do, and hold the rows against the invariants."""
        try:
            self.pass_time(LEASE)
            for duty in (take_back, relay.end_overdue, relay.repeat_after_commit):
                duty()
            assert verify.violations(str(id) for id in self.expected) == []
        finally:
            delete_rows(None)

    def _choose(self, pick: int, suits: Callable[[Expected], bool]) -> uuid.UUID:
        """Pick an operation: mostly one with which there is something to do, for most steps to be moves."""
        every = list(self.expected)
        suitable = [id for id in every if suits(self.expected[id])]
        pool = suitable if suitable and pick % SELDOM else every
        return pool[pick % len(pool)]

    def _is_live(self, held: Held) -> bool:
        return self.expected[held.claim.operation.id].is_held_by(held.claim, self.now)

    def _was_held(self, held: Held, moved: Any) -> bool:
        """Look that the claim moved its operation if it still was the operation's, and only then."""
        assert (moved is not None) == self._is_live(held)
        return moved is not None

    def _is_news(self, id: uuid.UUID, version: int) -> bool:
        applied, by = self.applied.get(self.expected[id].resource, (0, id))
        return version > applied or by == id

    def _succeeded(self, id: uuid.UUID, version: int) -> None:
        self.expected[id].become("succeeded")
        self.applied[self.expected[id].resource] = (version, id)


class TestLife:
    @pytest.mark.timeout(900)  # half a minute; but a failing example is made short before it is printed
    def test_is_that_of_the_model(self, monkeypatch, settings_of_life, servers):
        """The same examples every time; a failing one is printed as the calls that lead to it."""
        monkeypatch.setitem(jobs._registry, JOB.name, JOB)
        monkeypatch.setattr(retry.random, "random", lambda: 0.0)  # pauses without jitter
        monkeypatch.setattr(backlog, "BEHIND_SECONDS", float("inf"))  # a message is one operation's

        run_state_machine_as_test(
            Life,
            settings=settings(
                derandomize=True,
                database=None,
                deadline=None,
                max_examples=60,
                stateful_step_count=50,
                suppress_health_check=list(HealthCheck),
            ),
        )


@pytest.fixture
def settings_of_life(settings):
    settings.LEASE_SECONDS = LEASE
    settings.LOCK_POLL_SECONDS = POLL
    settings.MAX_INTERRUPTIONS = MOST_INTERRUPTIONS
