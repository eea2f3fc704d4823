"""Holds and orders: what is not handed out, and the page from which a person pauses, paces and refuses."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse

from config.admin import ReadOnlyAdmin
from operations import controls, holds, jobs
from operations.models import Dependency, Hold, JobControl
from operations.templatetags import show

PERMISSION = "operations.control_jobcontrol"


class OrderForm(forms.Form):
    """One order, and why."""

    scope = forms.CharField(max_length=150, help_text="job_type:NAME, queue:NAME or owner:USERNAME")
    act = forms.ChoiceField(
        label="Order", choices=[(act, act) for act in (*controls.ORDERS, "rate", "backoff")]
    )
    number = forms.FloatField(
        required=False, min_value=0, help_text="rate: operations a minute, 0 for no limit; backoff: a factor"
    )
    reason = forms.CharField(
        max_length=controls.LONGEST_REASON,
        error_messages={"required": "Say why: it is kept, and shown beside what waits."},
        widget=forms.Textarea(attrs={"rows": 2, "placeholder": "Why? Shown beside everything that waits."}),
    )


@admin.register(JobControl)
class JobControlAdmin(ReadOnlyAdmin):
    """The last order for each scope. They are given on the page of orders."""

    list_display = (
        "scope",
        "paused",
        "accepting",
        "rate_per_minute",
        "backoff_factor",
        "why",
        "actor",
        "moment",
    )
    ordering = ("scope",)
    search_fields = ("scope",)
    search_help_text = "Scope (job_type:…, queue:…, owner:…)"

    @admin.display(description="reason")
    def why(self, control: JobControl) -> str:
        return show.line(control.reason)

    @admin.display(description="since")
    def moment(self, control: JobControl) -> str:
        return show.when(control.changed_at)

    def get_urls(self) -> list[URLPattern]:
        mine = [path("order/", self.admin_site.admin_view(self.order), name="operations_jobcontrol_order")]
        return mine + super().get_urls()

    def order(self, request: HttpRequest) -> HttpResponse:
        """Show what is held on GET, carry an order out on POST."""
        if not self.has_view_permission(request) or (request.method == "POST" and not _may(request)):
            raise PermissionDenied
        form = OrderForm(request.POST if request.method == "POST" else None)
        if request.method == "POST" and form.is_valid() and _carry_out(form, request):
            return HttpResponseRedirect(reverse("admin:operations_jobcontrol_order"))
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": "Holds and orders",
            "form": form if _may(request) else None,
            "held": [(hold, holds.sentence(hold)) for hold in holds.open_now()],
            "job_types": [job.name for job in jobs.every()],
        }
        return TemplateResponse(request, "operations/admin/order.html", context)


@admin.register(Hold)
class HoldAdmin(ReadOnlyAdmin):
    """When what was held, and why: deadlines leave these times out."""

    list_display = ("id", "scope", "kind", "began", "ended", "per_second", "actor", "why")
    list_filter = ("kind",)
    search_fields = ("scope",)
    search_help_text = "Scope"

    @admin.display(description="from")
    def began(self, hold: Hold) -> str:
        return show.when(hold.began_at)

    @admin.display(description="until")
    def ended(self, hold: Hold) -> str:
        return show.NOTHING if hold.ended_at is None else show.when(hold.ended_at)

    @admin.display(description="reason")
    def why(self, hold: Hold) -> str:
        return show.line(hold.reason)


@admin.register(Dependency)
class DependencyAdmin(ReadOnlyAdmin):
    """The breakers of the services we call."""

    list_display = ("name", "state", "generation", "since", "calls", "failures", "probes_failed", "why")
    list_filter = ("state",)
    ordering = ("name",)
    search_fields = ("name",)
    search_help_text = "Name"

    @admin.display(description="since")
    def since(self, dependency: Dependency) -> str:
        return show.when(dependency.changed_at)

    @admin.display(description="heard last")
    def why(self, dependency: Dependency) -> str:
        return show.line(dependency.reason)


def _may(request: HttpRequest) -> bool:
    return request.user.has_perm(PERMISSION)


def _carry_out(form: OrderForm, request: HttpRequest) -> bool:
    """Do what the form says. False: it cannot be done, and the form says why."""
    said: dict[str, Any] = form.cleaned_data
    try:
        done = controls.change(
            controls.read(said["scope"]),
            actor=request.user.get_username(),
            reason=said["reason"],
            request_id=str(getattr(request, "id", "")),
            **controls.wanted(said["act"], said["number"]),
        )
    except controls.BadOrder as bad:
        form.add_error(None, str(bad))
        return False
    messages.success(request, f"Ordered: {said['act']} {done.scope}.")
    return True
