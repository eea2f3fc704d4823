"""Replay and discard from the browser: a preview, a reason, then a transaction for each dead letter."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

from operations import replays
from operations.models import DeadLetter, Operation, Resolution

LIMIT = 200  # dead letters an act: some seconds of one request, and as many as a person can look through
REFUSALS_TOLD = 10  # one message each; the rest is a number


@dataclass(frozen=True)
class Act:
    """Something a person may do with dead letters."""

    verb: str
    done: str
    permission: str
    preview: Callable[[DeadLetter], replays.Preview]
    do: Callable[..., Operation]


REPLAY = Act("replay", "Replayed", "operations.replay_deadletter", replays.preview, replays.replay)
DISCARD = Act(
    "discard", "Discarded", "operations.discard_deadletter", replays.preview_discard, replays.discard
)


class ReasonForm(forms.Form):
    """Why it is done."""

    reason = forms.CharField(
        max_length=1_000,
        strip=True,
        error_messages={"required": "Say why: the reason is kept in the audit."},
        widget=forms.Textarea(attrs={"rows": 2, "autofocus": True, "placeholder": "Why? Kept in the audit."}),
    )


def may(request: HttpRequest, act: Act) -> bool:
    return request.user.has_perm(act.permission)


def address_of(act: Act, letter_ids: Iterable[int]) -> str:
    """Give the address of the page that previews an act."""
    chosen = ",".join(str(letter_id) for letter_id in letter_ids)
    return f"{reverse(f'admin:operations_deadletter_{act.verb}')}?{urlencode({'ids': chosen}, safe=',')}"


def replay_page(request: HttpRequest, context: dict[str, Any]) -> HttpResponse:
    return _page(request, context, REPLAY)


def discard_page(request: HttpRequest, context: dict[str, Any]) -> HttpResponse:
    return _page(request, context, DISCARD)


def _page(request: HttpRequest, context: dict[str, Any], act: Act) -> HttpResponse:
    """Preview on GET, act on POST."""
    if not may(request, act):
        raise PermissionDenied
    letters = _chosen(request)
    form = ReasonForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and letters and form.is_valid():
        _do_all(act, letters, reason=form.cleaned_data["reason"], request=request)
        return HttpResponseRedirect(_afterwards(letters))
    previews = [(letter, act.preview(letter)) for letter in letters]
    eligible = sum(preview.eligible for _, preview in previews)
    return TemplateResponse(
        request,
        "operations/admin/act.html",
        {
            **context,
            "title": f"{act.verb.capitalize()} {_count(len(letters))}",
            "act": act,
            "previews": previews,
            "eligible": eligible,
            "refused": len(previews) - eligible,
            "limit": LIMIT,
            "of_group": request.GET.get("signature", ""),
            "ids": ",".join(str(letter.id) for letter in letters),
            "form": form,
        },
    )


def _chosen(request: HttpRequest) -> list[DeadLetter]:
    """Read the dead letters that the form or the address names: by id, or the oldest that wait in a group."""
    letters = DeadLetter.objects.select_related("operation__owner").defer("traceback").order_by("id")
    signature = request.GET.get("signature", "")
    if request.method == "GET" and signature:
        return list(letters.filter(signature=signature, resolution=Resolution.WAITING)[:LIMIT])
    named = (request.POST if request.method == "POST" else request.GET).get("ids", "")
    ids = [int(each) for each in named.split(",") if each.isascii() and each.isdecimal() and len(each) < 19]
    return list(letters.filter(id__in=ids)[:LIMIT])


def _do_all(act: Act, letters: Iterable[DeadLetter], *, reason: str, request: HttpRequest) -> None:
    """Do it to each, and tell the person what came of it."""
    refusals = []
    done = 0
    for letter in letters:
        refusal = _do(act, letter, reason=reason, request=request)
        done += refusal is None
        if refusal is not None:
            refusals.append(f"Dead letter {letter.id} was left alone: {refusal}.")
    if done:
        messages.success(request, f"{act.done} {_count(done)}.")
    for refusal in refusals[:REFUSALS_TOLD]:
        messages.warning(request, refusal)
    if len(refusals) > REFUSALS_TOLD:
        messages.warning(request, f"{_count(len(refusals) - REFUSALS_TOLD)} more were left alone.")


def _do(act: Act, letter: DeadLetter, *, reason: str, request: HttpRequest) -> str | None:
    """Give None when done, else the sentence that says why not."""
    request_id = str(getattr(request, "id", ""))
    try:
        act.do(letter.id, actor=request.user.get_username(), reason=reason, request_id=request_id)
    except replays.Refused as refused:
        return str(refused)
    except OperationalError:
        return "its rows are busy or the database is away; nothing was changed, try again"
    return None


def _afterwards(letters: list[DeadLetter]) -> str:
    if len(letters) == 1:
        return reverse("admin:operations_operation_change", args=[letters[0].operation_id])
    return reverse("admin:operations_deadletter_changelist")


def _count(number: int) -> str:
    return f"{number} dead letter{'' if number == 1 else 's'}"
