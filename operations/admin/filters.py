"""What lists can be narrowed by, none of it found by reading the table for its distinct values."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.contrib.admin import SimpleListFilter
from django.db.models import Count, Min, QuerySet
from django.http import HttpRequest
from django.utils import timezone

from operations import jobs
from operations.models import DeadLetter, Operation, Resolution, Status

AGES = {
    "15min": ("Last 15 minutes", timedelta(minutes=15)),
    "1h": ("Last hour", timedelta(hours=1)),
    "1d": ("Last day", timedelta(days=1)),
    "7d": ("Last 7 days", timedelta(days=7)),
}
OLDER = {
    "older-1h": ("Older than an hour", timedelta(hours=1)),
    "older-1d": ("Older than a day", timedelta(days=1)),
    "older-7d": ("Older than 7 days", timedelta(days=7)),
}
LARGEST = 8  # signatures that are offered; any other comes from a link


class JobTypeFilter(SimpleListFilter):
    """The jobs that the code knows, and whichever the address names."""

    title = "job type"
    parameter_name = "job_type"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        names = {job.name for job in jobs.every()} | ({self.value()} - {None})
        return [(str(name), str(name)) for name in sorted(map(str, names))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset if self.value() is None else queryset.filter(job_type=self.value())


class AgeFilter(SimpleListFilter):
    """How long ago a row was made."""

    title = "age"
    parameter_name = "age"
    column = "created_at"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        return [(name, words) for name, (words, _) in (AGES | OLDER).items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        name = str(self.value())
        if name in AGES:
            return queryset.filter(**{f"{self.column}__gte": timezone.now() - AGES[name][1]})
        if name in OLDER:
            return queryset.filter(**{f"{self.column}__lt": timezone.now() - OLDER[name][1]})
        return queryset


class MomentFilter(AgeFilter):
    """The same for rows that call it `at`."""

    column = "at"


class ResolutionFilter(SimpleListFilter):
    """What became of a dead letter; unless asked otherwise, those that wait for a person."""

    title = "resolution"
    parameter_name = "resolution"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        return [*Resolution.choices, ("any", "Any")]

    def choices(self, changelist: Any) -> Any:
        """Leave out the line "All": it would be a second word for the default."""
        return list(super().choices(changelist))[1:]

    def value(self) -> str:
        return super().value() or Resolution.WAITING

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset if self.value() == "any" else queryset.filter(resolution=self.value())


class ReasonFilter(SimpleListFilter):
    """Why an operation became a dead letter: the reasons that a move there can have."""

    title = "reason"
    parameter_name = "reason"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        deaths = (move for move in Operation.MOVES if move.to == Status.FAILED_PERMANENT)
        return [(reason, reason) for reason in sorted({reason for move in deaths for reason in move.reasons})]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset if self.value() is None else queryset.filter(reason=self.value())


class SignatureFilter(SimpleListFilter):
    """Dead letters of one kind: the largest groups, or the one that a link names."""

    title = "signature"
    parameter_name = "signature"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        waiting = DeadLetter.objects.filter(resolution=Resolution.WAITING).values("signature")
        groups = waiting.annotate(many=Count("id"), kind=Min("error_class")).order_by("-many")[:LARGEST]
        offered = {
            group[
                "signature"
            ]: f"{group['kind'] or 'no class'} · {group['signature'][:8]} ({group['many']:,})"
            for group in groups
        }
        named = {} if self.value() is None else {str(self.value()): str(self.value())}
        return (named | offered).items()

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset if self.value() is None else queryset.filter(signature=self.value())
