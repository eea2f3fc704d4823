"""Every error answer: application/problem+json (RFC 9457), a stable type, a sentence, nothing internal."""

import logging
import math
import random
from collections.abc import Mapping
from typing import Any, NamedTuple

from django.conf import settings
from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.db import InterfaceError, InternalError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from psycopg.errors import ReadOnlySqlTransaction
from rest_framework import exceptions
from rest_framework.permissions import SAFE_METHODS
from rest_framework.response import Response

from operations import accept, keys
from operations.admission import Overloaded, TooManyOpen
from operations.cache import Unavailable
from operations.cancel import NotCancellable
from operations.list_queries import QueryInvalid
from operations.parsers import BodyTooLarge, LengthMissing

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
DOCUMENTATION = "/docs/problems"
RETRY_AFTER_OUTAGE_SECONDS = (2, 6)  # a range: clients that failed together should not return together
ASK_AGAIN = "the database does not answer; ask again"
# Nobody knows: the connection may have ended after the COMMIT and before its answer.
SEND_AGAIN = (
    "the database does not answer, and the request may or may not have been accepted:"
    " send it again with the same key, and it is accepted once"
)


class Problem(NamedTuple):
    """One kind of error: its HTTP status, the last part of its type URI, and its title."""

    status: int
    name: str
    title: str


class DatabaseAway(exceptions.APIException):
    """Nothing can be accepted, read or learned until the database answers again."""

    status_code = 503


PROBLEMS: dict[type[BaseException], Problem] = {
    keys.KeyMissing: Problem(400, "idempotency-key-missing", "The Idempotency-Key header is missing"),
    keys.KeyInvalid: Problem(400, "idempotency-key-invalid", "The Idempotency-Key header is not a valid key"),
    accept.KeyReused: Problem(422, "idempotency-key-reused", "The key belongs to another request"),
    accept.KeyInProgress: Problem(
        409, "request-in-progress", "The first request with this key is being accepted"
    ),
    accept.VersionMoved: Problem(412, "version-moved", "The resource has changed since you saw it"),
    NotCancellable: Problem(409, "not-cancellable", "It is too late to cancel this operation"),
    QueryInvalid: Problem(400, "query-invalid", "The query string is not valid"),
    exceptions.ValidationError: Problem(400, "validation-error", "The request is not valid"),
    exceptions.ParseError: Problem(400, "malformed-body", "The body is not the JSON that was announced"),
    exceptions.NotAuthenticated: Problem(401, "not-authenticated", "Credentials are missing"),
    exceptions.AuthenticationFailed: Problem(401, "not-authenticated", "The credentials are not accepted"),
    exceptions.PermissionDenied: Problem(403, "not-allowed", "You may not do this"),
    exceptions.NotFound: Problem(404, "not-found", "There is nothing here"),
    Http404: Problem(404, "not-found", "There is nothing here"),
    exceptions.MethodNotAllowed: Problem(405, "method-not-allowed", "This method does not work here"),
    exceptions.NotAcceptable: Problem(406, "not-acceptable", "No representation suits the Accept header"),
    LengthMissing: Problem(411, "length-missing", "The size of the body is not stated"),
    BodyTooLarge: Problem(413, "body-too-large", "The body is too large"),
    RequestDataTooBig: Problem(413, "body-too-large", "The body is too large"),
    exceptions.UnsupportedMediaType: Problem(415, "unsupported-media-type", "Send application/json"),
    exceptions.Throttled: Problem(429, "quota-exceeded", "Too many requests"),
    TooManyOpen: Problem(429, "too-many-open", "Too many operations of yours are not done yet"),
    Overloaded: Problem(503, "temporary-reduced-capacity", "There is more work than can be done just now"),
    accept.NotAccepted: Problem(503, "not-accepted-now", "Requests of this kind are not accepted just now"),
    SuspiciousOperation: Problem(400, "bad-request", "The request is not one for this service"),
    Unavailable: Problem(503, "temporarily-unavailable", "The service cannot answer just now"),
    DatabaseAway: Problem(503, "temporarily-unavailable", "The service cannot answer just now"),
}
INTERNAL = Problem(500, "internal", "Something went wrong here")
DESCRIBED_BY_LINK = {"idempotency-key-missing", "idempotency-key-invalid", "idempotency-key-reused"}


def answer(error: Exception, context: Mapping[str, Any]) -> Response | None:
    """Answer what a view let rise (DRF's EXCEPTION_HANDLER); None for an exception nobody foresaw."""
    if isinstance(error, (OperationalError, InterfaceError)) or _is_read_only(error):
        log.error("database.away", extra={"error": type(error).__name__})
        reading = context["request"].method in SAFE_METHODS
        error = DatabaseAway(ASK_AGAIN if reading else SEND_AGAIN)
    problem = next((PROBLEMS[kind] for kind in type(error).__mro__ if kind in PROBLEMS), None)
    if problem is None:
        return None
    request = context["request"]
    body = describe(problem, detail=_detail(error), request_id=getattr(request, "id", ""))
    if isinstance(error, exceptions.ValidationError):
        body["errors"] = list(_pointers(error.detail, "#"))
    response = Response(body, status=problem.status, headers=_headers(error, problem))
    response.content_type = MEDIA_TYPE
    return response


def _is_read_only(error: Exception) -> bool:
    """Say whether the database takes no writes, as a replica that nobody has promoted yet."""
    return isinstance(error, InternalError) and isinstance(error.__cause__, ReadOnlySqlTransaction)


def describe(problem: Problem, *, detail: str = "", request_id: str = "") -> dict[str, Any]:
    """Give the members of a problem object: {type, title, status, detail?, request_id?}."""
    body = {"type": f"{DOCUMENTATION}#{problem.name}", "title": problem.title, "status": problem.status}
    return {
        **body,
        **({"detail": detail} if detail else {}),
        **({"request_id": request_id} if request_id else {}),
    }


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer what Django refuses before a view sees it: another host, a thousand parameters."""
    return _plain(request, PROBLEMS[SuspiciousOperation])


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    return _plain(request, PROBLEMS[Http404])


def internal(request: HttpRequest) -> HttpResponse:
    return _plain(request, INTERNAL)


def _plain(request: HttpRequest, problem: Problem) -> HttpResponse:
    body = describe(problem, request_id=getattr(request, "id", ""))
    return JsonResponse(body, status=problem.status, content_type=MEDIA_TYPE)


def _detail(error: Exception) -> str:
    if isinstance(error, exceptions.ValidationError):
        return "the members named in `errors` are not valid; the key has not been used up"
    if isinstance(error, RequestDataTooBig):
        return f"a body has at most {settings.DATA_UPLOAD_MAX_MEMORY_SIZE} bytes"
    if isinstance(error, SuspiciousOperation):
        return ""  # Django's words are for us
    return str(getattr(error, "detail", error))


def _headers(error: Exception, problem: Problem) -> dict[str, str]:
    headers: dict[str, str] = {}
    if problem.name in DESCRIBED_BY_LINK:
        headers["Link"] = f'<{DOCUMENTATION}#{problem.name}>; rel="describedby"'
    if challenge := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = challenge
    if (seconds := _come_back_after(error, problem)) is not None:
        headers["Retry-After"] = str(seconds)
    if problem.status == 415:
        headers["Accept-Post"] = "application/json"
    return headers


def _come_back_after(error: Exception, problem: Problem) -> int | None:
    """Give the seconds after which to try again, for what may be different then."""
    if (wait := getattr(error, "wait", None)) is not None:
        return math.ceil(wait)
    if problem.name == "request-in-progress":
        return 1
    if problem.status in (429, 503):
        return random.randint(*RETRY_AFTER_OUTAGE_SECONDS)  # noqa: S311 (spreads load, hides nothing)
    return None


def _pointers(detail: Any, pointer: str) -> Any:
    """Flatten DRF's nested errors to {pointer, detail, code}, pointers as in RFC 6901."""
    if isinstance(detail, Mapping):
        for member, inner in detail.items():
            name = str(member).replace("~", "~0").replace("/", "~1")
            yield from _pointers(inner, f"{pointer}/{name}")
    elif isinstance(detail, list):
        for inner in detail:
            yield from _pointers(inner, pointer)
    else:
        yield {"pointer": pointer, "detail": str(detail), "code": getattr(detail, "code", "invalid")}
