"""GET an operation: what became of a request; short if nothing has changed, and after a wait on request."""

from collections.abc import Callable
from datetime import datetime
from functools import partial
from uuid import UUID

from django.utils import timezone
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from operations import conditions, documents, reading, waits
from operations.lifecycle import Found
from operations.reading import Glimpse
from operations.serializers import OperationView, represent

POLL_SECONDS = ((1, 1), (5, 2), (15, 5), (60, 10))  # (younger than, ask again after); older: 30
OWNERS_ONLY = {"Cache-Control": "private, no-cache", "Vary": "Authorization, Accept, Prefer"}
NOTHING = "no operation of yours has this id"


class OwnedView(APIView):
    """A view that can see its user's operations and no others: they all look for them here."""

    @property
    def owner_id(self) -> int:
        return int(self.request.user.pk or 0)

    def find(self, operation_id: UUID) -> Found:
        """Give an operation of the user.

        Raises:
            rest_framework.exceptions.NotFound: there is none: unknown, another's, or purged.
        """
        found = reading.stands(operation_id, owner_id=self.owner_id)
        if found is None:
            raise NotFound(NOTHING)
        return found

    def glimpse(self, operation_id: UUID) -> Glimpse:
        """Look whether an operation of the user has changed; raises as `find` does."""
        seen = reading.glimpse(operation_id, owner_id=self.owner_id)
        if seen is None:
            raise NotFound(NOTHING)
        return seen


class OperationDetail(OwnedView):
    """GET: an operation as it stands now, always from the database."""

    @extend_schema(
        operation_id="get_operation",
        summary="What became of an operation",
        parameters=[documents.IF_NONE_MATCH, documents.PREFER, *documents.STATUS_HEADERS],
        responses={
            200: OpenApiResponse(OperationView, description="The operation as it stands now."),
            304: documents.NOT_MODIFIED,
        },
        extensions=documents.problems("not-found"),
    )
    def get(self, request: Request, operation_id: UUID) -> Response:
        known = request.META.get("HTTP_IF_NONE_MATCH")
        applied = self._wait(request, operation_id, known)
        found = self.find(operation_id)
        seen = reading.glimpse_of(found.operation)
        headers = _headers(seen) | applied
        # One statement, also for a 304: to look first and read then costs the polls that do find something a
        # third more, and saves the others a twentieth.
        if known is not None and conditions.names(known, seen.etag):
            return Response(status=304, headers=headers)
        body = represent(found.operation, result=found.result, error=found.error)
        return Response(body, headers=headers)

    def _wait(self, request: Request, operation_id: UUID, known: str | None) -> dict[str, str]:
        """Wait as long as the client likes, if there is a place; give the header that says so."""
        seconds = waits.preferred_seconds(request.META.get("HTTP_PREFER"))
        if not seconds:
            return {}
        is_known: Callable[[str], bool] | None = None if known is None else partial(conditions.names, known)
        with waits.place(request.META) as free:
            if not free:
                return {}
            waits.for_change(partial(self.glimpse, operation_id), is_known=is_known, seconds=seconds)
        return {"Preference-Applied": f"wait={seconds}"}


def _headers(seen: Glimpse) -> dict[str, str]:
    headers = {**OWNERS_ONLY, "ETag": seen.etag}
    if not seen.is_final:
        headers["Retry-After"] = str(_ask_again_after(seen.created_at))
    return headers


def _ask_again_after(created_at: datetime) -> int:
    age_seconds = (timezone.now() - created_at).total_seconds()
    return next((pause for younger_than, pause in POLL_SECONDS if age_seconds < younger_than), 30)
