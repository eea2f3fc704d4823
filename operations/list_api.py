"""GET the operations of a user, the newest first, page by page."""

from typing import Any
from urllib.parse import urlencode

from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from operations import documents, list_queries, reading
from operations.list_queries import ListQuery
from operations.serializers import OperationPage, in_list
from operations.status_api import OWNERS_ONLY, OwnedView


class OperationList(OwnedView):
    """GET: one's own operations."""

    @extend_schema(
        operation_id="list_operations",
        summary="Your operations, the newest first",
        description="A page with filters may be short, or empty, while `next` is not null: go on there.",
        parameters=[ListQuery, *documents.PRIVATE_HEADERS],
        responses={200: OpenApiResponse(OperationPage, description="A page, and where the next is.")},
        extensions=documents.problems("query-invalid"),
    )
    def get(self, request: Request) -> Response:
        page = reading.page(list_queries.read(dict(request.GET.lists())), owner_id=self.owner_id)
        body = {"items": [in_list(operation) for operation in page.operations], "next": _next(request, page)}
        return Response(body, headers=OWNERS_ONLY)


def _next(request: Request, page: reading.Page) -> str | None:
    if page.last is None:
        return None
    query: dict[str, Any] = {**request.GET.dict(), "cursor": list_queries.cursor_of(page.last)}
    return f"{request.path}?{urlencode(query)}"
