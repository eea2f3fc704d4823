"""The Celery tasks: one a job, named like it, made of five small concerns. What they do is run.execute."""

import os
from typing import Any
from uuid import UUID

from celery import Task

from config.celery import app
from operations import compensation, jobs, lifecycle, metrics
from operations.claims import Claim
from operations.compensation import Ending
from operations.dead_letters import Failure
from operations.jobs import Job
from operations.models import Operation, Reason, Status
from tasks import lock, retry, run
from tasks.retry import Again, GiveUp


class LockMixin:
    """One run at a time for a resource."""

    request: Any

    @property
    def worker(self) -> str:
        """Name this process in claims, locks and history."""
        return f"{self.request.hostname or 'local'}/{os.getpid()}"

    def take_lock(self, operation: Operation, token: UUID) -> lock.Holder | None:
        """Take the lock of the operation's resource, or say who holds it.

        Raises:
            StoreAway: nobody can know who holds it.
        """
        result = "error"
        try:
            holder = lock.take(operation.resource, token=token, operation_id=operation.id, worker=self.worker)
            result = "acquired" if holder is None else "contended"
        finally:
            metrics.LOCKS.labels(operation.job_type, result).inc()
        return holder


class BackoffMixin:
    """How long to wait: the job's schedule."""

    job: Job

    def backoff_seconds(self, operation: Operation) -> float:
        return self.job.retry.before(operation.attempt + 1)


class JitterMixin:
    """Not all at once."""

    def jittered(self, seconds: float) -> float:
        return retry.jittered(seconds)


class RetryMixin:
    """Again, or not."""

    job: Job

    def describe(self, error: BaseException) -> Failure:
        return retry.describe(error, self.job)

    def decide(self, operation: Operation, failure: Failure) -> Again | GiveUp:
        pause = self.jittered(self.backoff_seconds(operation))  # type: ignore[attr-defined]
        return retry.decide(operation, failure, pause_seconds=pause)


class DeadLetterMixin:
    """The end that a person looks at."""

    job: Job

    def bury(self, claim: Claim, reason: str, failure: Failure) -> Operation | None:
        """End the operation as a dead letter, or let it first release what it has reserved."""
        ending = Ending(Status.FAILED_PERMANENT, reason)
        turned = compensation.turn_back(claim, self.job, ending, failure)
        if turned is not None:
            return turned
        if claim.operation.compensating_for and reason != Reason.OUTCOME_UNKNOWN:
            reason = Reason.COMPENSATION_FAILED
        return lifecycle.fail(claim, reason=reason, failure=failure)


class OperationTask(LockMixin, RetryMixin, BackoffMixin, JitterMixin, DeadLetterMixin, Task):
    """A job's Celery task. Its message names an operation; everything else it needs is in the row."""

    abstract = True
    Request = "tasks.loss:WatchedRequest"
    acks_late = True
    ignore_result = True

    @property
    def released(self) -> list[int]:
        """Name the holds that let this operation pass. See Note [A hold lets pass what names it]."""
        named = self.request.get("released")
        return [each for each in named if isinstance(each, int)] if isinstance(named, list) else []

    @property
    def tells_of_more(self) -> bool:
        """Say whether the message is one for many. See operations/reminders.py."""
        return self.request.get("more") is True

    @property
    def is_probe(self) -> bool:
        return self.request.get("probe") is True

    def run(self, operation_id: str) -> None:
        run.execute(self, operation_id)


def task_of(job: Job) -> OperationTask:
    """Make the Celery task of a job. Its hard limit is Celery's; the soft one is ours (tasks/limits.py)."""
    kind = type(job.name, (OperationTask,), {"name": job.name, "job": job, "time_limit": job.hard_limit})
    return kind()


for _job in jobs.every():
    app.register_task(task_of(_job))
