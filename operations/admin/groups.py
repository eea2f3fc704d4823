"""Dead letters by signature: how many of a kind, since when, of whom."""

from typing import Any

from django.core.paginator import Page
from django.db.models import Count, Max, Min, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from config.admin import COUNT_CAP, CappedPaginator
from operations import jobs
from operations.admin import acts
from operations.models import DeadLetter, Resolution

GROUPS_ON_A_PAGE = 50
ORDERS = {"count": "-count", "last": "-last_at", "first": "first_at"}


def page(request: HttpRequest, context: dict[str, Any]) -> HttpResponse:
    """Show the groups of dead letters that wait; ?expected=1 those that a business rule made."""
    expected = request.GET.get("expected") == "1"
    job_type, order = request.GET.get("job_type", ""), request.GET.get("order", "count")
    letters = _newest(waiting(expected=expected, job_type=job_type))
    shown = CappedPaginator(_grouped(letters, ORDERS.get(order, "-count")), GROUPS_ON_A_PAGE).get_page(
        request.GET.get("p")
    )
    return TemplateResponse(
        request,
        "operations/admin/groups.html",
        {
            **context,
            "title": "Dead letters by signature",
            "page": shown,
            "groups": _told(shown, letters),
            "expected": expected,
            "job_type": job_type,
            "job_types": sorted(job.name for job in jobs.every()),
            "order": order if order in ORDERS else "count",
            "may_replay": acts.may(request, acts.REPLAY),
            "may_discard": acts.may(request, acts.DISCARD),
        },
    )


def waiting(*, expected: bool = False, job_type: str = "") -> QuerySet[DeadLetter]:
    """Give the dead letters that wait for a person; the expected ones are counted apart."""
    letters = DeadLetter.objects.filter(resolution=Resolution.WAITING, expected=expected)
    return letters.filter(job_type=job_type) if job_type else letters


def _newest(letters: QuerySet[DeadLetter]) -> QuerySet[DeadLetter]:
    """Bound the work: group the newest COUNT_CAP only."""
    oldest = letters.order_by("-id").values_list("id", flat=True)[COUNT_CAP : COUNT_CAP + 1].first()
    return letters if oldest is None else letters.filter(id__gt=oldest)


def _grouped(letters: QuerySet[DeadLetter], order: str) -> Any:
    return (
        letters.values("signature")
        .annotate(
            count=Count("id"),
            first_at=Min("created_at"),
            last_at=Max("created_at"),
            sample_id=Max("id"),
        )
        .order_by(order, "signature")
    )


def _told(groups: Page, letters: QuerySet[DeadLetter]) -> list[dict[str, Any]]:
    """Add what only the groups on the page need: the newest letter, and how many owners there are."""
    samples = DeadLetter.objects.defer("traceback").in_bulk([group["sample_id"] for group in groups])
    shown = letters.filter(signature__in=[group["signature"] for group in groups])
    counted = shown.values("signature").annotate(owners=Count("operation__owner", distinct=True))
    owners = dict(counted.values_list("signature", "owners"))
    return [
        {**group, "sample": samples[group["sample_id"]], "owners": owners.get(group["signature"], 0)}
        for group in groups
        if group["sample_id"] in samples
    ]
