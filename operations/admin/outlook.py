"""What happens next to an operation, and when, in sentences."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from django.conf import settings

from operations import deadlines, holds, order
from operations.models import DeadLetter, Operation, Resolution, Status, WorkerNode
from operations.serializers import waiting_for
from operations.templatetags.show import distance, span

MISSED_REPORTS = 3  # a process that has not reported for so many periods is not counted as alive


def alive(node: WorkerNode, now: datetime) -> bool:
    period = (
        settings.RELAY_PERIOD_SECONDS + settings.NODE_PERIOD_SECONDS
        if node.kind == "relay"
        else settings.NODE_PERIOD_SECONDS
    )
    return now - node.last_seen_at < timedelta(seconds=MISSED_REPORTS * period)


def outlook(
    operation: Operation, *, now: datetime, nodes: Iterable[WorkerNode], letters: Iterable[DeadLetter]
) -> list[str]:
    """Say what is to come, the nearest first."""
    if operation.status == Status.PROCESSING:
        return _of_processing(operation, now)
    if operation.status in (Status.QUEUED, Status.RETRY_SCHEDULED):
        return [
            *_of_waiting(operation, now),
            _of_workers(operation, now, nodes),
            _of_deadline(operation, now),
        ]
    if operation.status == Status.FAILED_PERMANENT:
        return _of_failed(letters)
    return [f"Nothing: {operation.status} is final."]


def _of_processing(operation: Operation, now: datetime) -> list[str]:
    lease = operation.lease_expires_at
    if lease is None:
        raise ValueError(f"operation {operation.id} is processing and has no lease")
    if lease <= now:
        soon = f"{settings.RELAY_PERIOD_SECONDS:.0f} s"
        return [f"The lease is over: the relay takes the operation back within {soon}."]
    left = max(operation.max_attempts - operation.attempt, 0)
    return [
        f"{operation.claimed_by} works on it; it says so again before the lease ends {distance(lease, now)}.",
        "Should the worker be lost, the relay takes the operation back when the lease ends.",
        f"After this attempt {left} remain." if left else "This is the last attempt.",
    ]


def _of_waiting(operation: Operation, now: datetime) -> list[str]:
    if (hold := holds.over(operation)) is not None:
        return [f"It is {holds.sentence(hold)}."]
    if (head := order.blocked_by(operation)) is not None:
        return [
            f"It is blocked by {head}, which was accepted before it for {operation.resource} and is not done."
        ]
    if operation.run_at > now:
        return [
            f"It may run {distance(operation.run_at, now)}, at {operation.run_at:%H:%M:%S} UTC.",
            f"Waits for {waiting_for(operation)}.",
        ]
    return [
        f"Due since {span(now - operation.run_at)}; waits for {waiting_for(operation)}.",
        _of_message(operation, now),
    ]


def _of_message(operation: Operation, now: datetime) -> str:
    if operation.published_at is None:
        soon = f"{settings.RELAY_PERIOD_SECONDS:.0f} s"
        return (
            f"It has no message: the relay sends one within {soon}, or, where many wait already,"
            " a worker takes it without one."
        )
    sent = distance(operation.published_at, now)
    return f"Its message was sent {sent}; if it was lost, the relay repeats it."


def _of_workers(operation: Operation, now: datetime, nodes: Iterable[WorkerNode]) -> str:
    serving = [node for node in nodes if operation.job_type in node.queues and alive(node, now)]
    if not serving:
        return "No live worker serves its queue: nothing takes it until one starts."
    one = len(serving) == 1
    slots = sum(node.slots for node in serving)
    return f"{len(serving)} live {'worker serves' if one else 'workers serve'} its queue, {slots} slots."


def _of_deadline(operation: Operation, now: datetime) -> str:
    deadline = deadlines.effective(operation)
    at = distance(deadline, now)
    if deadline <= now:
        return f"Its deadline passed {at}: the relay ends it as a dead letter."
    return f"If it has not finished by its deadline, {at}, it becomes a dead letter."


def _of_failed(letters: Iterable[DeadLetter]) -> list[str]:
    if any(letter.resolution == Resolution.WAITING for letter in letters):
        return ["Nothing by itself: it waits for a person to replay or discard it."]
    return ["Nothing by itself."]
