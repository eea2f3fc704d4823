"""Where Ctrl+K leads: to the operations that carry a name, and to the pages of the menu.

django-unfold's own answer keeps objects in the cache, and ours holds only JSON.
"""

from typing import Any
from urllib.parse import urlencode

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse

from operations.admin.menu import navigation

SHOWN = 20


def page(request: HttpRequest) -> HttpResponse:
    """Answer with the list that the dialog shows."""
    term = request.GET.get("s", "").strip()
    if not term:
        return HttpResponse()
    found = Paginator(_found(request, term), SHOWN).page(1)
    context = {"results": found, "page_obj": found.paginator, "page_counter": 0, "execution_time": 0}
    return TemplateResponse(
        request, "unfold/helpers/command_results.html", context, headers={"HX-Trigger": "search"}
    )


def _found(request: HttpRequest, term: str) -> list[dict[str, Any]]:
    items = [item for group in navigation(request) for item in group["items"]]
    pages = [item for item in items if term.lower() in item["title"].lower()]
    return [*_operations(request, term), *(_line(item["title"], "Page", item["link"]) for item in pages)]


def _operations(request: HttpRequest, term: str) -> list[dict[str, Any]]:
    if not request.user.has_perm("operations.view_operation"):
        return []
    address = f"{reverse('admin:operations_operation_changelist')}?{urlencode({'q': term})}"
    return [_line(term, "Operations: id, request, correlation, key, resource or owner", address)]


def _line(title: str, description: str, link: str) -> dict[str, Any]:
    return {"title": title, "description": description, "link": link, "icon": "arrow_forward"}
