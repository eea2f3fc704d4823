"""How an operation looks from outside."""

from typing import Any

from rest_framework import serializers

from operations import holds, order
from operations.models import Operation, Reason, Status


class OperationInList(serializers.Serializer[Operation]):
    """An operation in a list: without result and error, which its `status_url` gives."""

    operation_id = serializers.UUIDField(source="id")
    job_type = serializers.CharField(help_text="What it does, e.g. inventory.sync.")
    status = serializers.ChoiceField(choices=Status.choices)
    reason = serializers.CharField(help_text="Why it is in this status; empty where nothing needs saying.")
    status_url = serializers.CharField()
    created_at = serializers.DateTimeField()
    attempt = serializers.IntegerField(help_text="The attempt that runs or ran last; 0 before the first.")
    max_attempts = serializers.IntegerField()
    run_at = serializers.DateTimeField(help_text="When it may run next.")
    waiting_for = serializers.CharField(help_text="What it waits for, in words.")


class OperationView(OperationInList):
    """An operation as its owner sees it."""

    result = serializers.JSONField(allow_null=True)
    error = serializers.JSONField(
        allow_null=True,
        help_text="{category, class, message, dependency} of the last failure;"
        " with `lock_lost` if the run had lost its resource's lock.",
    )


class OperationPage(serializers.Serializer[None]):
    """A page of a user's operations."""

    items = OperationInList(many=True)
    next = serializers.CharField(allow_null=True, help_text="The address of the next page; null: none.")


def represent(operation: Operation, *, result: Any = None, error: Any = None) -> dict[str, Any]:
    """Give the JSON of OperationView. By hand, because every answer of the API passes here."""
    return {**in_list(operation), "result": result, "error": error}


def in_list(operation: Operation) -> dict[str, Any]:
    """Give the JSON of OperationInList."""
    return {
        "operation_id": str(operation.id),
        "job_type": operation.job_type,
        "status": operation.status,
        "reason": operation.reason,
        "status_url": status_url(operation),
        "created_at": operation.created_at,
        "attempt": operation.attempt,
        "max_attempts": operation.max_attempts,
        "run_at": operation.run_at,
        "waiting_for": waiting_for(operation),
    }


def status_url(operation: Operation) -> str:
    return f"/v1/operations/{operation.id}"


def waiting_for(operation: Operation) -> str:
    """Say in words what an operation waits for; empty if for nothing. May ask the database."""
    hold = holds.over(operation)
    if hold is not None:
        return holds.sentence(hold)
    head = order.blocked_by(operation)
    if head is not None:
        return f"blocked by {head}"
    return operation.waiting_for or _next(operation)


def _next(operation: Operation) -> str:
    match operation.status:
        case Status.RETRY_SCHEDULED:
            return _next_run(operation)
        case Status.QUEUED:
            return "a worker"
        case Status.PROCESSING if operation.cancel_requested_at is not None:
            return "its run to notice that it is cancelled"
    return ""


def _next_run(operation: Operation) -> str:
    due_at = f"{operation.run_at:%Y-%m-%dT%H:%M:%SZ}"
    if operation.reason == Reason.OUTCOME_UNKNOWN:
        return f"what became of its {operation.step!r}, looked up at {due_at}"
    nth = min(operation.attempt + 1, operation.max_attempts)
    attempt = f"attempt {nth} of {operation.max_attempts} at {due_at}"
    if operation.compensating_for:
        return f"the release of what it has reserved, {attempt}, before it ends: {operation.compensating_for}"
    return attempt
