"""What every admin page is built on, and the only file that knows django-unfold."""

from typing import Any, cast

from django.contrib.admin import ShowFacets
from django.contrib.admin.utils import get_fields_from_path
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied, ValidationError
from django.core.paginator import Paginator
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.functional import cached_property
from unfold.admin import ModelAdmin as BaseAdmin
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from config.plain import harmless

__all__ = [
    "COUNT_CAP",
    "AdminPasswordChangeForm",
    "BaseAdmin",
    "CappedCount",
    "CappedPaginator",
    "ReadOnlyAdmin",
    "UserChangeForm",
    "UserCreationForm",
    "capped",
]

COUNT_CAP = 100_000  # rows: nobody reads so far, and counting more would make the list wait


class CappedCount(int):
    """A count that stopped at a cap, and says so."""

    cap = COUNT_CAP

    def __str__(self) -> str:
        return f"{int(self):,}+" if self >= self.cap else f"{int(self):,}"


def capped(queryset: QuerySet[Any]) -> CappedCount:
    """Count rows, but not beyond COUNT_CAP."""
    return CappedCount(queryset.order_by()[:COUNT_CAP].count())


class CappedPaginator(Paginator):
    """Pages over the first COUNT_CAP rows."""

    @cached_property
    def count(self) -> int:
        return capped(cast(QuerySet[Any], self.object_list))


class UncountedList(ChangeList):
    """A list that never counts all rows beside those found, and shows only harmless text."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.full_result_count = self.result_count
        self.result_list = [harmless(row) for row in self.result_list]


class ReadOnlyAdmin(BaseAdmin):
    """Rows to be read and found, by nobody to be changed: not even by a superuser.

    Lists are newest first. `search_fields` are compared as whole values, which indexes can answer, and each
    word of a search must be one of them.
    """

    actions: tuple[str, ...] | None = None
    ordering = ("-pk",)
    paginator = CappedPaginator
    list_per_page = 50
    list_max_show_all = 50
    show_full_result_count = False
    show_facets = ShowFacets.NEVER
    list_fullwidth = True
    list_filter_sheet = True
    empty_value_display = "—"

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Refuse an action that was not offered, instead of Django's silent redirect."""
        asked = request.POST.get("action")
        if asked and asked not in self.get_actions(request):
            raise PermissionDenied
        return super().changelist_view(request, extra_context)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        found = super().get_object(request, object_id, from_field)
        return None if found is None else harmless(found)

    def get_changelist(self, request: HttpRequest, **options: Any) -> type[ChangeList]:
        return UncountedList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        for word in search_term.split():
            queryset = queryset.filter(_is(word, self.model, self.search_fields))
        return queryset, False


def _is(word: str, model: type[Model], paths: tuple[str, ...]) -> Q:
    """Give the condition that one of the fields is `word`; fields that cannot hold it do not count."""
    found = Q(pk__in=[])
    for path in paths:
        field = get_fields_from_path(model, path)[-1]
        try:
            found |= Q(**{path: getattr(field, "target_field", field).to_python(word)})
        except ValidationError:
            continue
    return found
