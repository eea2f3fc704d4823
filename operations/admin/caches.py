"""The page of caches: how each does, and the form that clears one or gives it other times."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.dateparse import parse_datetime

from config.admin import ReadOnlyAdmin
from operations import cache_acts, cache_kinds, cache_orders, cache_report
from operations.admin.controls import PERMISSION
from operations.cache_store import AWAY
from operations.models import CacheOrder
from operations.templatetags import show

HOURS = 24
ACTS = ("clear", "order", "reset")


class CacheForm(forms.Form):
    """One act, and why."""

    cache = forms.ChoiceField()
    act = forms.ChoiceField(choices=[(act, act) for act in ACTS])
    soft_seconds = forms.FloatField(
        required=False, label="Fresh for", help_text="order: seconds until a value is rebuilt"
    )
    jitter = forms.FloatField(required=False, help_text="order: 0 to 1, by how much times are stretched")
    revalidate = forms.NullBooleanField(
        label="Serve what is stale",
        help_text="order: while it is rebuilt",
        widget=forms.Select(choices=[("", "as it is"), ("true", "yes"), ("false", "no")]),
        required=False,
    )
    reason = forms.CharField(
        max_length=cache_orders.LONGEST_REASON,
        error_messages={"required": "Say why: it is kept."},
        widget=forms.Textarea(attrs={"rows": 2, "placeholder": "Why? It is kept in the audit."}),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Offer the caches there are."""
        super().__init__(*args, **kwargs)
        chosen = self.fields["cache"]
        assert isinstance(chosen, forms.ChoiceField)  # noqa: S101 (for the type checker)
        chosen.choices = [(cached.name, cached.name) for cached in cache_kinds.every()]


@admin.register(CacheOrder)
class CacheOrderAdmin(ReadOnlyAdmin):
    """The last order for each cache. They are given on the page of caches."""

    list_display = ("cache", "soft_seconds", "jitter", "revalidate", "why", "actor", "moment")
    ordering = ("cache",)
    search_fields = ("cache",)
    search_help_text = "Cache"

    @admin.display(description="reason")
    def why(self, order: CacheOrder) -> str:
        return show.line(order.reason)

    @admin.display(description="since")
    def moment(self, order: CacheOrder) -> str:
        return show.when(order.changed_at)

    def get_urls(self) -> list[URLPattern]:
        mine = [path("caches/", self.admin_site.admin_view(self.caches), name="operations_cacheorder_caches")]
        return mine + super().get_urls()

    def caches(self, request: HttpRequest) -> HttpResponse:
        """Show how the caches do on GET, act on one on POST."""
        if not self.has_view_permission(request) or (request.method == "POST" and not _may(request)):
            raise PermissionDenied
        form = CacheForm(request.POST if request.method == "POST" else None)
        if request.method == "POST" and form.is_valid() and _carry_out(form, request):
            return HttpResponseRedirect(reverse("admin:operations_cacheorder_caches"))
        told, away = _told()
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": "Caches",
            "form": form if _may(request) else None,
            "told": told,
            "away": away,
            "hours": HOURS,
        }
        return TemplateResponse(request, "operations/admin/caches.html", context)


def _told() -> tuple[list[dict[str, Any]], str]:
    """Tell of each cache; or why nobody can: its server is away."""
    try:
        told = [cache_report.told(cached, hours=HOURS) for cached in cache_kinds.every()]
    except AWAY as away:
        return [], type(away).__name__
    for each in told:
        last = each["last_invalidated_at"]
        each["last_invalidated_at"] = None if last is None else parse_datetime(last)
    return told, ""


def _may(request: HttpRequest) -> bool:
    return request.user.has_perm(PERMISSION)


def _carry_out(form: CacheForm, request: HttpRequest) -> bool:
    """Do what the form says. False: it cannot be done, and the form says why."""
    said: dict[str, Any] = form.cleaned_data
    try:
        done = _done(said, request)
    except cache_orders.BadOrder as bad:
        form.add_error(None, str(bad))
        return False
    except AWAY as away:
        form.add_error(None, f"the cache does not answer: {type(away).__name__}")
        return False
    messages.success(request, f"{said['cache']}: {done}.")
    return True


def _done(said: dict[str, Any], request: HttpRequest) -> str:
    (cached,) = cache_report.named(said["cache"])
    who = {
        "actor": request.user.get_username(),
        "reason": said["reason"],
        "request_id": str(getattr(request, "id", "")),
    }
    if said["act"] == "clear":
        return f"{cache_acts.clear(cached, **who)} values cleared"
    if said["act"] == "reset":
        cache_acts.reset(cached, **who)
        return "times are as declared"
    wanted = {name: said[name] for name in ("soft_seconds", "jitter", "revalidate")}
    cache_acts.order(cached, wanted, **who)
    return "ordered"
