"""POST: an operation's owner wants it no more. Twice is fine, so no key is needed."""

from uuid import UUID

from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from operations import cancel, conditions, documents, reading
from operations.accept import VersionMoved
from operations.lifecycle import Found
from operations.serializers import OperationView, represent
from operations.status_api import OwnedView


class Cancel(OwnedView):
    """POST: end an operation, or ask its run to."""

    @extend_schema(
        operation_id="cancel_operation",
        summary="Cancel an operation",
        description=(
            "What no run has ends at once, as `ignored` with the reason `cancelled` (200). A run that has it"
            " is asked to stop (202): it may, or may end otherwise; its status says so. Twice is fine."
        ),
        parameters=[documents.IF_MATCH, *documents.CANCEL_HEADERS],
        request=None,
        responses={
            200: OpenApiResponse(OperationView, description="It is cancelled."),
            202: OpenApiResponse(OperationView, description="Its run is asked to stop."),
        },
        extensions=documents.problems("not-found", "not-cancellable", "version-moved"),
    )
    def post(self, request: Request, operation_id: UUID) -> Response:
        found = self.find(operation_id)
        only_as_seen = _is_as_seen(found, request.META.get("HTTP_IF_MATCH"))
        cancelled = cancel.cancel(found, only_as_seen=only_as_seen)
        body = represent(cancelled.operation, result=cancelled.result, error=cancelled.error)
        if cancelled.operation.is_final:
            return Response(body)
        return Response(body, status=202, headers={"Location": body["status_url"], "Retry-After": "1"})


def _is_as_seen(found: Found, if_match: str | None) -> bool:
    """Say whether the client cares that it is; a request that was made before is repeated whatever it saw.

    Raises:
        operations.accept.VersionMoved: it cares, and has seen another state.
    """
    operation = found.operation
    if if_match is None or if_match.strip() == "*" or operation.cancel_requested_at is not None:
        return False
    etag = reading.glimpse_of(operation).etag
    if not conditions.names(if_match, etag):
        raise VersionMoved(f"operation {operation.id} is at {etag} by now")
    return True
