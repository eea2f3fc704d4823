"""Make the rows a test begins with, in the state it needs, without walking there."""

import itertools
import time
import uuid
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import F
from django.utils import timezone

from operations import accept, jobs, lifecycle
from operations.claims import Claim
from operations.dead_letters import Failure
from operations.jobs import Job, OwnerID, Payload
from operations.models import FINAL, Category, DeadLetter, Operation, OperationData, Status, Transition
from tasks import relay
from tasks.base import app, task_of

HOUR = timedelta(hours=1)
LEASE = timedelta(seconds=settings.LEASE_SECONDS)
numbers = itertools.count(1)


class WorkPayload(Payload):
    """What the jobs of tests are asked for."""

    user_id = OwnerID()


def make_user(username: str = "") -> User:
    return User.objects.create(username=username or f"user-{next(numbers)}")


def make_job(handler: Any = lambda run, answer, **values: None, **contract: Any) -> Job:
    """Declare a job that no registry knows: its task is made by hand, and no other test sees it."""
    fields = {"name": "tests.work", "purpose": "Do as the test says.", "payload": WorkPayload}
    return Job(handler=handler, **fields | contract)


def make_request(owner: User, **changes: Any) -> accept.Request:
    """Make a request as the API would hand it to accept."""
    fields = {
        "job": jobs.get("inventory.sync"),
        "owner_id": owner.pk,
        "key": "k-1",
        "fingerprint": "v1:of-the-first-body",
        "payload": {"user_id": owner.pk},
    }
    fields |= changes
    return accept.Request(**{"values": fields["payload"], **fields})


def make_operation(*, status: str = Status.QUEUED, job: Job | None = None, **changes: Any) -> Operation:
    """Make an operation in any status, as the moves into it would have left its row."""
    job = jobs.get("inventory.sync") if job is None else job
    owner = changes.pop("owner", None) or make_user()
    payload = changes.pop("payload", {"user_id": owner.pk})
    fields = {
        "job_type": job.name,
        "owner": owner,
        "status": status,
        "max_attempts": job.retry.attempts,
        "deadline_at": timezone.now() + job.deadline,
        "published_at": timezone.now(),
        "resource": job.resource.format(**{"user_id": owner.pk, **payload}),
    }
    operation = Operation.objects.create(**fields | _of_status(status) | changes)
    OperationData.objects.create(operation=operation, payload=payload)
    return operation


def make_claim(operation: Operation | None = None, **changes: Any) -> Claim:
    """Claim an operation as a worker does, without its lock."""
    operation = make_operation(**changes) if operation is None else operation
    claim = lifecycle.claim(
        operation.id, job_type=operation.job_type, worker="worker-a/1", token=uuid.uuid4()
    )
    assert claim is not None
    return claim


def make_failure(**changes: Any) -> Failure:
    fields = {"category": Category.TIMEOUT, "message": "no answer in 10 s", "error_class": "CallFailed"}
    return Failure(**fields | changes)


def make_dead_letter(operation: Operation | None = None, **changes: Any) -> DeadLetter:
    operation = make_operation(status=Status.FAILED_PERMANENT) if operation is None else operation
    fields = {"job_type": operation.job_type, "reason": "bug", "category": "bug", "attempts": 1, "runs": 1}
    fields |= {"resource": operation.resource, "resource_seq": operation.resource_seq}
    return DeadLetter.objects.create(operation=operation, schema_version=1, **fields | changes)


def work(operation: Operation, job: Job | None = None) -> Operation:
    """Do what a worker does with one message about `operation`, and give the row as it then stands."""
    task = app.tasks[operation.job_type] if job is None else task_of(job)
    task.bind(app)
    task.run(str(operation.id))
    return Operation.objects.select_related("data").get(id=operation.id)


def history(operation: Operation) -> list[tuple[str, str, str]]:
    """Give an operation's moves in order: (from, to, reason)."""
    moves = Transition.objects.filter(operation_id=operation.id).order_by("id")
    return list(moves.values_list("from_status", "to_status", "reason"))


def take_back() -> int:
    """Do what a relay does that has looked for a lease: it takes back what is over, and says how much."""
    taken, later = relay.take_back(), time.monotonic() + settings.LEASE_SECONDS
    return taken + relay.take_back(clock=lambda: later)


def earlier(operation: Operation, *columns: str, by: timedelta = HOUR) -> None:
    """Move times of a row into the past: what waited becomes due, a lease ends, a deadline passes."""
    Operation.objects.filter(id=operation.id).update(**{column: F(column) - by for column in columns})


def _of_status(status: str) -> dict[str, Any]:
    now = timezone.now()
    run = {"runs": 1, "attempt": 1, "first_started_at": now, "started_at": now, "claim_token": uuid.uuid4()}
    if status == Status.PROCESSING:
        return {**run, "reason": "", "claimed_by": "worker-z/9", "lease_expires_at": now + LEASE}
    if status == Status.RETRY_SCHEDULED:
        return {**run, "reason": "timeout", "published_at": None}
    if status in FINAL:
        reason = {"failed_permanent": "bug", "ignored": "duplicate"}.get(status, "")
        return {**run, "reason": reason, "finished_at": now}
    return {}
