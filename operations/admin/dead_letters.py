"""Dead letters: the list, the groups of a kind, and the page of one."""

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path

from config.admin import ReadOnlyAdmin
from operations import replays
from operations.admin import acts, groups
from operations.admin.filters import AgeFilter, JobTypeFilter, ReasonFilter, ResolutionFilter, SignatureFilter
from operations.dead_letters import in_general
from operations.models import DeadLetter, Resolution
from operations.templatetags import show


@admin.register(DeadLetter)
class DeadLetterAdmin(ReadOnlyAdmin):
    """Read-only but for two acts, each with a permission of its own."""

    list_display = (
        "letter",
        "died",
        "error",
        "failure",
        "job_type",
        "owner",
        "group",
        "operation_page",
    )
    list_select_related = ("operation__owner",)
    list_filter = (
        ResolutionFilter,
        JobTypeFilter,
        ReasonFilter,
        "category",
        SignatureFilter,
        AgeFilter,
        "expected",
    )
    search_fields = (
        "operation",
        "operation__request_id",
        "correlation_id",
        "idempotency_key",
        "operation__resource",
        "operation__owner__username",
        "signature",
    )
    search_help_text = "Operation, request, correlation, key, resource, owner"
    actions = ("replay_selected", "discard_selected")
    list_disable_select_all = True  # what is not on the page is not selected: see LIMIT in acts.py
    change_list_template = "operations/admin/dead_letters.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[DeadLetter]:
        return super().get_queryset(request).defer("traceback")

    @admin.display(description="dead letter")
    def letter(self, letter: DeadLetter) -> str:
        return f"{letter.id}"

    @admin.display(description="reason")
    def failure(self, letter: DeadLetter) -> str:
        became = "" if letter.resolution == Resolution.WAITING else letter.resolution
        return show.standing(letter.reason, became)

    @admin.display(description="error")
    def error(self, letter: DeadLetter) -> str:
        return show.error(letter.error_class, in_general(letter.error_message))

    @admin.display(description="signature")
    def group(self, letter: DeadLetter) -> str:
        return show.code(letter.signature[:8])

    @admin.display(description="owner")
    def owner(self, letter: DeadLetter) -> str:
        return letter.operation.owner.get_username()

    @admin.display(description="died")
    def died(self, letter: DeadLetter) -> str:
        return show.when(letter.created_at)

    @admin.display(description="operation")
    def operation_page(self, letter: DeadLetter) -> str:
        return show.operation_link(letter.operation_id)

    def has_replay_permission(self, request: HttpRequest) -> bool:
        return acts.may(request, acts.REPLAY)

    def has_discard_permission(self, request: HttpRequest) -> bool:
        return acts.may(request, acts.DISCARD)

    @admin.action(description="Replay …", permissions=["replay"])
    def replay_selected(self, request: HttpRequest, queryset: QuerySet[DeadLetter]) -> HttpResponse:
        return HttpResponseRedirect(acts.address_of(acts.REPLAY, queryset.values_list("id", flat=True)))

    @admin.action(description="Discard …", permissions=["discard"])
    def discard_selected(self, request: HttpRequest, queryset: QuerySet[DeadLetter]) -> HttpResponse:
        return HttpResponseRedirect(acts.address_of(acts.DISCARD, queryset.values_list("id", flat=True)))

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Show one dead letter, and what a replay of it would do."""
        letters = DeadLetter.objects.select_related("operation__owner")
        letter = letters.filter(pk=int(object_id)).first() if object_id.isdecimal() else None
        if letter is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)
        if request.method != "GET" or not self.has_view_permission(request, letter):
            raise PermissionDenied
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "original": letter,
            "title": f"Dead letter {letter.id}",
            "letter": letter,
            "preview": replays.preview(letter),
            "may_replay": acts.may(request, acts.REPLAY),
            "may_discard": acts.may(request, acts.DISCARD),
        }
        return TemplateResponse(request, "operations/admin/dead_letter.html", context)

    def get_urls(self) -> list[URLPattern]:
        mine = [
            path("groups/", self._view(groups.page), name="operations_deadletter_groups"),
            path("replay/", self._view(acts.replay_page), name="operations_deadletter_replay"),
            path("discard/", self._view(acts.discard_page), name="operations_deadletter_discard"),
        ]
        return mine + super().get_urls()

    def _view(self, page: Any) -> Any:
        """Let in those who may see dead letters, and give the page what every page of the admin shows."""

        def view(request: HttpRequest) -> HttpResponse:
            if not self.has_view_permission(request):
                raise PermissionDenied
            return page(request, {**self.admin_site.each_context(request), "opts": self.opts})

        return self.admin_site.admin_view(view)
