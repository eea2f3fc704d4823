"""What was done outside: the list, and the page where a person says what became of what nobody knows."""

import json
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse

from operations import settle
from operations.admin.records import Linked
from operations.models import Effect
from operations.templatetags import show

PERMISSION = "operations.settle_effect"
MOST_SHOWN = 200  # the oldest; those behind them come when these are settled


class FindingForm(forms.Form):
    """What a person has found out."""

    effect = forms.ChoiceField(help_text="of those below")
    certainty = forms.ChoiceField(
        label="Outcome", choices=[(each.value, each.value) for each in settle.OUTCOMES]
    )
    reference = forms.CharField(
        max_length=200, help_text="the provider's own name for it: where what you say can be looked up"
    )
    result = forms.CharField(
        required=False,
        help_text="JSON, if confirmed: what the provider would have answered",
        widget=forms.Textarea(attrs={"rows": 1, "placeholder": '{"id": "ch_1"}'}),
    )
    reason = forms.CharField(
        max_length=1_000,
        error_messages={"required": "Say how you found out: it is kept in the audit."},
        widget=forms.Textarea(attrs={"rows": 2, "placeholder": "How did you find out? Kept in the audit."}),
    )

    def __init__(self, data: Any, *, effects: list[Effect], chosen: str) -> None:
        """Offer these effects."""
        super().__init__(data, initial={"effect": chosen})
        field = self.fields["effect"]
        assert isinstance(field, forms.ChoiceField)  # noqa: S101 (for the type checker)
        field.choices = [(str(each.pk), f"{each.pk}: {each.step}") for each in effects]

    def clean_result(self) -> dict[str, Any] | None:
        text = self.cleaned_data["result"]
        try:
            result = json.loads(text) if text else None
        except ValueError as error:
            raise forms.ValidationError(f"This is no JSON: {error}") from error
        if result is not None and not isinstance(result, dict):
            raise forms.ValidationError('An answer is an object, like {"id": "ch_1"}.')
        return result


@admin.register(Effect)
class EffectAdmin(Linked):
    """What operations did outside, and their own steps. What was sent and answered is not shown."""

    list_display = (
        "id",
        "of_operation",
        "step",
        "generation",
        "certainty",
        "amount_minor",
        "sent",
        "concluded_by",
        "run",
    )
    list_filter = ("certainty", "kind", "step")
    search_fields = ("operation__id", "key")
    search_help_text = "Operation, key"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Effect]:
        return super().get_queryset(request).defer("request", "result")

    def get_exclude(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("operation", "request", "result")

    @admin.display(description="sent")
    def sent(self, row: Effect) -> str:
        return show.NOTHING if row.sent_at is None else show.when(row.sent_at)

    def get_urls(self) -> list[URLPattern]:
        mine = [
            path("settle/", self.admin_site.admin_view(self.settle_page), name="operations_effect_settle")
        ]
        return mine + super().get_urls()

    def settle_page(self, request: HttpRequest) -> HttpResponse:
        """Show what is unresolved on GET, settle or second one on POST."""
        if not self.has_view_permission(request) or (request.method == "POST" and not _may(request)):
            raise PermissionDenied
        effects = settle.unresolved()
        form = FindingForm(
            request.POST if request.method == "POST" else None,
            effects=effects[:MOST_SHOWN],
            chosen=request.GET.get("effect", ""),
        )
        if request.method == "POST" and form.is_valid() and _settled(form, request):
            return HttpResponseRedirect(reverse("admin:operations_effect_settle"))
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": "Unknown outcomes",
            "form": form if effects and _may(request) else None,
            "effects": effects[:MOST_SHOWN],
            "more": len(effects) - MOST_SHOWN,
        }
        return TemplateResponse(request, "operations/admin/settle.html", context)


def _may(request: HttpRequest) -> bool:
    return request.user.has_perm(PERMISSION)


def _settled(form: FindingForm, request: HttpRequest) -> bool:
    """Record what the form says. False: it can't be, and the form says why."""
    said: dict[str, Any] = form.cleaned_data
    finding = settle.Finding(said["certainty"], said["reference"], said["reason"], said["result"])
    try:
        effect = settle.settle(
            int(said["effect"]),
            finding,
            actor=request.user.get_username(),
            request_id=str(getattr(request, "id", "")),
        )
    except settle.Refused as refused:
        form.add_error(None, str(refused))
        return False
    messages.success(request, _told(effect))
    return True


def _told(effect: Effect) -> str:
    if effect.proposed is not None:
        certainty = effect.proposed["certainty"]
        return f"Effect {effect.pk} is proposed as {certainty}: another person has to say the same."
    return f"Effect {effect.pk} is {effect.certainty}. Replay its operation to go on from there."
