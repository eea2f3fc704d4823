"""Operations: the list, and the page that tells what happened to one and what happens next."""

from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone

from config.admin import ReadOnlyAdmin
from operations import holds, jobs
from operations.admin import data, timeline
from operations.admin.acts import ReasonForm
from operations.admin.filters import AgeFilter, JobTypeFilter
from operations.admin.outlook import outlook
from operations.models import AuditEntry, Operation, Resolution, ResourceFence, Transition, WorkerNode
from operations.serializers import waiting_for
from operations.templatetags import show


@admin.register(Operation)
class OperationAdmin(ReadOnlyAdmin):
    """Read-only: an operation is moved by the lifecycle, and by people only through its dead letter."""

    list_display = ("operation", "job_type", "standing", "attempts", "next", "resource", "owner", "accepted")
    list_select_related = ("owner",)
    list_filter = ("status", JobTypeFilter, AgeFilter, "reason")
    search_fields = (
        "id",
        "request_id",
        "correlation_id",
        "idempotency_key",
        "resource",
        "owner__username",
    )
    search_help_text = "Id, request, correlation, key, resource, owner"

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Find what holds the rows of a page, once for all of them."""
        page = super().get_changelist_instance(request)
        holds.look_over(page.result_list)
        return page

    @admin.display(description="operation")
    def operation(self, operation: Operation) -> str:
        return show.code(str(operation.id))

    @admin.display(description="status")
    def standing(self, operation: Operation) -> str:
        return show.standing(operation.status, operation.reason)

    @admin.display(description="attempt")
    def attempts(self, operation: Operation) -> str:
        return f"{operation.attempt} of {operation.max_attempts}"

    @admin.display(description="next")
    def next(self, operation: Operation) -> str:
        return show.line(waiting_for(operation), 60) or (operation.claimed_by or show.NOTHING)

    @admin.display(description="accepted")
    def accepted(self, operation: Operation) -> str:
        return show.when(operation.created_at)

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Show the story of an operation."""
        operation = self.get_object(request, object_id)
        if operation is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)
        if not self.has_view_permission(request, operation):
            raise PermissionDenied
        form = ReasonForm(request.POST if request.method == "POST" else None)
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "original": operation,
            "title": str(operation.id),
            **_page(operation, request),
            **_redacted(operation, request, form),
        }
        return TemplateResponse(request, "operations/admin/operation.html", context)

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Operation | None:
        found = Operation.objects.select_related("owner", "key")
        try:
            return found.filter(pk=Operation._meta.pk.to_python(object_id)).first()
        except ValidationError:
            return None


def _redacted(operation: Operation, request: HttpRequest, form: ReasonForm) -> dict[str, Any]:
    """Give the columns, with what the job redacts masked; to who may reveal it and says why, the payload."""
    if not request.user.has_perm("operations.view_operationdata"):
        if request.method == "POST":
            raise PermissionDenied
        return {"columns": None}
    redact = _secret_members(operation)
    columns = data.columns(operation, hidden=redact)
    shown: dict[str, Any] = {"columns": columns, "redact": redact, "form": form}
    shown["may_reveal"] = request.user.has_perm("operations.reveal_operationdata")
    if request.method == "POST":
        if "reveal" not in request.POST or not shown["may_reveal"]:
            raise PermissionDenied
        if form.is_valid():
            _note_reveal(operation, request, reason=form.cleaned_data["reason"])
            shown |= {"columns": [data.revealed(operation), *columns[1:]], "redact": ()}
    return shown


def _secret_members(operation: Operation) -> tuple[str, ...]:
    """Name what the job redacts; all, if nobody here knows what is secret in it."""
    job = next((job for job in jobs.every() if job.name == operation.job_type), None)
    known = job is not None and job.schema_version == operation.schema_version
    return job.redact if job is not None and known else (data.ALL,)


def _note_reveal(operation: Operation, request: HttpRequest, *, reason: str) -> None:
    """Write down who sees it before anybody does."""
    AuditEntry.objects.create(
        actor=request.user.get_username()[:150],
        action="reveal",
        target=f"operation:{operation.id}",
        reason=reason,
        request_id=str(getattr(request, "id", "")),
    )


def _page(operation: Operation, request: HttpRequest) -> dict[str, Any]:
    """Read what the page tells, as far as this person may see it."""
    may = request.user.has_perm
    letters = list(operation.dead_letters.defer("traceback").order_by("id"))
    moves = Transition.objects.filter(operation_id=operation.id).order_by("-id")[: timeline.MOVES_SHOWN]
    acts = AuditEntry.objects.filter(target=f"operation:{operation.id}").order_by("id")
    see_letters, see_acts = may("operations.view_deadletter"), may("operations.view_auditentry")
    open_letter = next((letter for letter in letters if letter.resolution == Resolution.WAITING), None)
    return {
        "operation": operation,
        "job": next((job for job in jobs.every() if job.name == operation.job_type), None),
        "outlook": outlook(operation, now=timezone.now(), nodes=WorkerNode.objects.all(), letters=letters),
        "events": timeline.story(
            operation,
            key=getattr(operation, "key", None),
            moves=reversed(moves),
            letters=letters if see_letters else (),
            acts=acts if see_acts else (),
            effects=operation.effects.defer("request", "result").order_by("id"),
            evidence=operation.evidence.defer("content").order_by("id"),
        ),
        "fence": ResourceFence.objects.filter(resource=operation.resource).first()
        if operation.resource
        else None,
        "open_letter": open_letter if see_letters else None,
        "may_replay": may("operations.replay_deadletter"),
        "may_discard": may("operations.discard_deadletter"),
    }
