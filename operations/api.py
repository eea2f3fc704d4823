"""The HTTP door: a view for each job with a route, made from its declaration. It only translates."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any, ClassVar

from django.conf import settings
from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_view
from rest_framework.exceptions import ParseError, PermissionDenied, UnsupportedMediaType, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from operations import accept, admission, documents, keys, secrecy
from operations.jobs import Job
from operations.parsers import BodyTooLarge, LengthMissing
from operations.requests import sane
from operations.serializers import OperationView, represent, status_url

FIRST_POLL_SECONDS = 2
STRONG_ETAG_LENGTH = 40  # characters of a version in quotes; a longer If-Match is not one of ours
LONGEST_RESOURCE = 200  # characters: what Operation.resource holds
LONGEST_SIZE = 18  # digits of a Content-Length that are read
PROBLEMS = (
    "idempotency-key-missing",
    "idempotency-key-invalid",
    "malformed-body",
    "validation-error",
    "request-in-progress",
    "length-missing",
    "body-too-large",
    "unsupported-media-type",
    "idempotency-key-reused",
    "too-many-open",
    "temporary-reduced-capacity",
    "not-accepted-now",
)


class JobView(APIView):
    """POST: accept one request for `job`, or say what became of it."""

    job: ClassVar[Job]

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Check in a fixed order what can be seen without reading the body.

        Its size, the credentials, the media type, and whether this user may ask for this job.
        """
        size = _stated_size(request)
        super().initial(request, *args, **kwargs)
        if size:
            _refuse_other_media(request)
        if self.job.permission and not request.user.has_perm(self.job.permission):
            raise PermissionDenied(f"this user may not ask for {self.job.name}")

    def post(self, request: Request) -> Response:
        key = keys.parse_key(request.META.get("HTTP_IDEMPOTENCY_KEY"))
        body = request.data
        if not isinstance(body, dict):
            raise ParseError("the body is a JSON object")
        asked = self._read(request, key, body)
        expected = accept.expected_repeat(asked)
        if expected is not None:
            return _accepted(expected, key)
        try:
            asked = asked._replace(values=self._checked(asked.owner_id, body))
        except (ValidationError, admission.TooManyOpen, admission.Overloaded):
            repeated = accept.find_repeat(asked)  # what was accepted before is repeated all the same
            if repeated is None:
                raise
            return _accepted(repeated, key)
        return _accepted(accept.accept(asked), key)

    def _read(self, request: Request, key: str, body: dict[str, Any]) -> accept.Request:
        owner_id = int(request.user.pk or 0)
        payload = self.job.payload.store(_jsonable(body), owner_id=owner_id)
        return accept.Request(
            job=self.job,
            owner_id=owner_id,
            key=key,
            fingerprint=keys.fingerprint(
                method="POST",
                path=request.path,
                job_type=self.job.name,
                media_type="application/json",
                body=body,
            ),
            payload=payload,
            values={},
            seen_version=_seen_version(request.META.get("HTTP_IF_MATCH")),
            request_id=request.id,  # type: ignore[attr-defined]
            correlation_id=sane(request.META.get("HTTP_X_CORRELATION_ID", "")),
        )

    def _checked(self, owner_id: int, body: dict[str, Any]) -> dict[str, Any]:
        """Give the Python values of the body. Refuse what is not valid, or too much just now."""
        secrecy.refuse_what_must_not_be_kept(body)
        values = self.job.payload.check(body, owner_id=owner_id)
        if len(self.job.resource_of(values)) > LONGEST_RESOURCE:
            raise ValidationError("These values name a resource of more than 200 characters.")
        admission.check(self.job.name, owner_id=owner_id)
        return values


def view_of(job: Job) -> Callable[..., Any]:
    """Make the view of a job with a route, documented from its declaration."""
    view: Any = type(
        f"{job.name.title().replace('.', '')}View", (JobView,), {"job": job, "__doc__": job.purpose}
    )
    described: Any = extend_schema_view(post=_description(job))(view)
    return described.as_view()


def _description(job: Job) -> Any:
    seen = [documents.SEEN_VERSION] if job.resource else []
    optional = {"not-allowed": job.permission, "version-moved": job.resource}
    return extend_schema(
        operation_id=job.name.replace(".", "_"),
        summary=job.purpose,
        parameters=[documents.IDEMPOTENCY_KEY, *seen, *documents.ACCEPTED_HEADERS],
        request=job.payload,
        responses={
            202: OpenApiResponse(OperationView, description="Accepted: it will be done, once."),
            200: OpenApiResponse(OperationView, description="The key named it before, and it is over."),
        },
        extensions=documents.problems(*PROBLEMS, *(name for name, needed in optional.items() if needed)),
    )


def _stated_size(request: Request) -> int:
    """Give the size of the body, which must be stated: what comes in chunks would be read as nothing."""
    if "HTTP_TRANSFER_ENCODING" in request.META:
        raise LengthMissing("state the body's size in a Content-Length header")
    stated = request.META.get("CONTENT_LENGTH", "")
    size = int(stated[:LONGEST_SIZE]) if stated.isdecimal() else 0
    if size > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
        raise BodyTooLarge(f"a body has at most {settings.DATA_UPLOAD_MAX_MEMORY_SIZE} bytes")
    return size


def _refuse_other_media(request: Request) -> None:
    negotiator: Any = request.negotiator
    if negotiator.select_parser(request, request.parsers) is None:
        raise UnsupportedMediaType(request.content_type)
    charset = (request.content_params or {}).get("charset", "utf-8").lower()
    if charset not in ("utf-8", "utf8"):
        raise UnsupportedMediaType(charset, f"JSON is sent in UTF-8, not in {charset[:40]}")
    coding = request.META.get("HTTP_CONTENT_ENCODING", "identity").lower()
    if coding != "identity":
        raise UnsupportedMediaType(coding, f"a body is sent as it is, not in {coding[:40]}")


def _accepted(accepted: accept.Accepted, key: str) -> Response:
    operation = accepted.operation
    headers = {"Location": status_url(operation), "Idempotency-Key": key}
    if not operation.is_final:
        headers["Retry-After"] = str(FIRST_POLL_SECONDS)
    if accepted.created:
        return Response(represent(operation), status=202, headers=headers)
    headers["Idempotent-Replayed"] = "true"
    body = represent(operation, result=accepted.result, error=accepted.error)
    return Response(body, status=200 if operation.is_final else 202, headers=headers)


def _seen_version(if_match: str | None) -> str | None:
    """Read If-Match: "12" is the version seen, "0" that of a resource never written; * matches any.

    What stands behind a plus sign is of the page that was seen, and not of the resource's version.
    """
    if if_match is None or if_match.strip() == "*":
        return None
    return if_match.strip()[:STRONG_ETAG_LENGTH].strip('"').partition("+")[0]


def _jsonable(value: Any) -> Any:
    """Keep fractions as text: JSON numbers with a fraction would lose digits on the way through a float."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        return {member: _jsonable(inner) for member, inner in value.items()}
    if isinstance(value, list):
        return [_jsonable(inner) for inner in value]
    return value
