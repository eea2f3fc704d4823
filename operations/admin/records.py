"""What is kept beside operations: moves, keys, audit, owed work, fences, processes."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils import timezone

from config.admin import ReadOnlyAdmin
from operations.admin.filters import AgeFilter, JobTypeFilter, MomentFilter
from operations.admin.outlook import alive
from operations.dead_letters import in_general
from operations.models import (
    AfterCommit,
    AuditEntry,
    BadMessage,
    IdempotencyRecord,
    Reason,
    ResourceFence,
    Transition,
    WorkerNode,
)
from operations.templatetags import show


class Linked(ReadOnlyAdmin):
    """Rows that belong to an operation, which may have been purged before them."""

    @admin.display(description="operation")
    def of_operation(self, row: Any) -> str:
        return show.NOTHING if row.operation_id is None else show.operation_link(row.operation_id)

    def get_exclude(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("operation",)  # of_operation says it without reading the operation

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("of_operation",)


@admin.register(Transition)
class TransitionAdmin(Linked):
    """The history of every operation."""

    list_display = ("id", "of_operation", "move", "reason", "run", "attempt", "actor", "problem", "moment")
    list_filter = ("to_status", MomentFilter)
    search_fields = ("operation",)
    search_help_text = "Operation"

    @admin.display(description="move")
    def move(self, row: Transition) -> str:
        return show.move(row.from_status, row.to_status)

    @admin.display(description="error")
    def problem(self, row: Transition) -> str:
        said_by_person = row.reason in (Reason.REPLAYED, Reason.DISCARDED)
        return show.line(row.error if said_by_person else in_general(row.error), 80)

    @admin.display(description="at")
    def moment(self, row: Transition) -> str:
        return show.when(row.at)


@admin.register(IdempotencyRecord)
class IdempotencyRecordAdmin(Linked):
    """Which operation a key names."""

    list_display = ("idempotency_key", "job_type", "user", "of_operation", "made")
    list_select_related = ("user",)
    list_filter = (JobTypeFilter, AgeFilter)
    search_fields = ("idempotency_key", "operation", "user__username")
    search_help_text = "Key, operation, owner"

    @admin.display(description="created")
    def made(self, row: IdempotencyRecord) -> str:
        return show.when(row.created_at)


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin):
    """Who did what, and why."""

    list_display = ("id", "moment", "actor", "action", "on", "why", "request_id")
    list_filter = (MomentFilter,)
    search_fields = ("target", "actor", "action", "request_id")
    search_help_text = "Target (operation:…), actor, action, request"

    @admin.display(description="at")
    def moment(self, entry: AuditEntry) -> str:
        return show.when(entry.at)

    @admin.display(description="target")
    def on(self, entry: AuditEntry) -> str:
        return show.target(entry.target)

    @admin.display(description="reason")
    def why(self, entry: AuditEntry) -> str:
        return show.line(entry.reason)


@admin.register(WorkerNode)
class WorkerNodeAdmin(ReadOnlyAdmin):
    """The processes that do the work, as they last reported."""

    ordering = ("-last_seen_at",)
    list_display = ("name", "lives", "kind", "release", "slots", "serves", "knows", "started", "seen")
    list_filter = ("kind",)
    search_fields = ("name", "release")
    search_help_text = "Name, release"

    @admin.display(description="alive", boolean=True)
    def lives(self, node: WorkerNode) -> bool:
        return alive(node, timezone.now())

    @admin.display(description="queues")
    def serves(self, node: WorkerNode) -> str:
        return ", ".join(node.queues) or show.NOTHING

    @admin.display(description="job types")
    def knows(self, node: WorkerNode) -> str:
        return ", ".join(node.job_types) or show.NOTHING

    @admin.display(description="started")
    def started(self, node: WorkerNode) -> str:
        return show.when(node.started_at)

    @admin.display(description="last seen")
    def seen(self, node: WorkerNode) -> str:
        return show.when(node.last_seen_at)


@admin.register(BadMessage)
class BadMessageAdmin(ReadOnlyAdmin):
    """Messages that no worker may work on. What they hold is on the page of each, not in the list."""

    ordering = ("-last_seen_at",)
    list_display = ("id", "fault", "queue", "size", "times", "found_by", "first", "last")
    list_filter = ("fault",)
    search_fields = ("queue", "task", "sha256")
    search_help_text = "Queue, task, SHA-256"

    @admin.display(description="worker")
    def found_by(self, message: BadMessage) -> str:
        return message.worker or show.NOTHING

    @admin.display(description="first seen")
    def first(self, message: BadMessage) -> str:
        return show.when(message.first_seen_at)

    @admin.display(description="last seen")
    def last(self, message: BadMessage) -> str:
        return show.when(message.last_seen_at)


@admin.register(ResourceFence)
class ResourceFenceAdmin(ReadOnlyAdmin):
    """The counters that guard resources."""

    list_display = ("resource", "fence", "applied_version", "applied")
    search_fields = ("resource", "applied_by")
    search_help_text = "Resource, operation"

    @admin.display(description="applied by")
    def applied(self, row: ResourceFence) -> str:
        return show.operation_link(row.applied_by) if row.applied_by else show.NOTHING


@admin.register(AfterCommit)
class AfterCommitAdmin(Linked):
    """What moves still owe the outside; a row that stays is a cache or lock store that is away."""

    list_display = ("id", "of_operation", "invalidate", "resource", "tries", "next", "made")
    list_filter = (AgeFilter,)
    search_fields = ("operation", "resource")
    search_help_text = "Operation, resource"

    @admin.display(description="next try")
    def next(self, row: AfterCommit) -> str:
        return show.when(row.run_at)

    @admin.display(description="created")
    def made(self, row: AfterCommit) -> str:
        return show.when(row.created_at)
