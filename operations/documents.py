"""What the OpenAPI description says of headers and problems: a view's own, and what any may answer with."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from drf_spectacular.extensions import OpenApiSerializerExtension
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse

from operations import keys
from operations.jobs import OwnerID
from operations.problems import DESCRIBED_BY_LINK, DOCUMENTATION, INTERNAL, MEDIA_TYPE, PROBLEMS, describe

BY_NAME = {problem.name: problem for problem in reversed([*PROBLEMS.values(), INTERNAL])}
OF_ANY = (
    "bad-request",
    "not-authenticated",
    "method-not-allowed",
    "not-acceptable",
    "quota-exceeded",
    "internal",
    "temporarily-unavailable",
)
METHODS = {"get", "post", "put", "patch", "delete"}
TEXT = {"type": "string"}
SECONDS = {"type": "integer", "minimum": 1}
NOT_MODIFIED = OpenApiResponse(description="Nothing that can be seen has changed.")
PROBLEM = {
    "type": "object",
    "description": "What went wrong (RFC 9457).",
    "properties": {
        "type": TEXT | {"description": f"Which kind: {DOCUMENTATION} says what to do about it."},
        "title": TEXT,
        "status": {"type": "integer"},
        "detail": TEXT | {"description": "What was wrong this time."},
        "request_id": TEXT | {"description": "Tell it to us, and we find the request."},
        "errors": {
            "type": "array",
            "description": "Which members are not valid, of a `validation-error`.",
            "items": {
                "type": "object",
                "properties": {
                    "pointer": TEXT | {"description": "RFC 6901, e.g. #/amount."},
                    "detail": TEXT,
                    "code": TEXT,
                },
                "required": ["pointer", "detail", "code"],
            },
        },
    },
    "required": ["type", "title", "status", "request_id"],
}


class PayloadSchema(OpenApiSerializerExtension):
    """A payload as a client sends it: whose it is, the credentials say; what is not declared is refused."""

    target_class = "operations.jobs.Payload"
    match_subclasses = True

    def map_serializer(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        schema = auto_schema._map_serializer(self.target, direction, bypass_extensions=True)
        owners = {name for name, field in self.target.fields.items() if isinstance(field, OwnerID)}
        members = {name: each for name, each in schema.get("properties", {}).items() if name not in owners}
        required = [name for name in schema.pop("required", []) if name not in owners]
        described = {**schema, "properties": members, "additionalProperties": False}
        return {**described, "required": required} if required else described


def problems(*names: str) -> dict[str, Any]:
    """Say which problems a view may answer with, beside those of any: for `extensions` of its description."""
    return {"x-problems": list(names)}


def complete(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Add to every operation the problems and the headers of its answers (a hook of drf-spectacular)."""
    result["components"]["schemas"]["Problem"] = PROBLEM
    for operation in _operations(result):
        named = [*OF_ANY, *operation.get("x-problems", [])]
        answers = {**operation["responses"], **_answers(named)}
        operation["responses"] = {status: answers[status] for status in sorted(answers)}
        for status, answer in operation["responses"].items():
            answer["headers"] = answer.get("headers", {}) | _headers(status, named)
    return result


def _operations(result: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for path in result["paths"].values():
        yield from (operation for method, operation in path.items() if method in METHODS)


def _answers(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    by_status = defaultdict(list)
    for name in names:
        by_status[str(BY_NAME[name].status)].append(name)
    return {status: _answer(status, of_it) for status, of_it in by_status.items()}


def _answer(status: str, names: list[str]) -> dict[str, Any]:
    """Describe an answer that is one of these problems."""
    types = [f"{DOCUMENTATION}#{name}" for name in names]
    narrow = {"properties": {"type": {"enum": types}, "status": {"enum": [int(status)]}}}
    content = {
        "schema": {"allOf": [{"$ref": "#/components/schemas/Problem"}, {"type": "object", **narrow}]},
        "examples": {name: {"summary": BY_NAME[name].title, "value": _example(name)} for name in names},
    }
    told = "; ".join(f"[`{name}`]({DOCUMENTATION}#{name}): {BY_NAME[name].title}" for name in names)
    return {"description": told, "content": {MEDIA_TYPE: content}}


def _example(name: str) -> dict[str, Any]:
    example = describe(BY_NAME[name], request_id="0197a0e5-2c5f-7c4e-9c55-3a1f0f7e8f11")
    if name == "validation-error":
        missing = {"pointer": "#/amount", "detail": "This field is required.", "code": "required"}
        example["errors"] = [missing]
    return example


def _headers(status: str, names: Iterable[str]) -> dict[str, Any]:
    """Describe the headers that an answer has whatever it is about, and those of its problems."""
    described = {
        "X-Request-ID": _header("The id of the request: yours, if you sent a sane one."),
        "RateLimit": _header("What is left of the quota, once it was counted.", required=False),
        "RateLimit-Policy": _header("The quota, once it was counted.", required=False),
        **PROBLEM_HEADERS.get(status, {}),
    }
    linked = [
        BY_NAME[name].name in DESCRIBED_BY_LINK for name in names if str(BY_NAME[name].status) == status
    ]
    if any(linked):
        described["Link"] = _header("Where the problem is described.", required=all(linked))
    return described


def _header(description: str, *, schema: dict[str, Any] = TEXT, required: bool = True) -> dict[str, Any]:
    return {"schema": schema, "description": description, **({"required": True} if required else {})}


PROBLEM_HEADERS = {
    "401": {"WWW-Authenticate": _header("Token")},
    "405": {"Allow": _header("The methods that work here.")},
    "409": {"Retry-After": _header("Seconds, if it may be different then.", schema=SECONDS, required=False)},
    "415": {"Accept-Post": _header("application/json")},
    "429": {"Retry-After": _header("Seconds.", schema=SECONDS)},
    "503": {"Retry-After": _header("Seconds.", schema=SECONDS)},
}


def _asked(name: str, description: str, *, required: bool = False, **schema: str) -> OpenApiParameter:
    return OpenApiParameter(
        name, TEXT | schema, OpenApiParameter.HEADER, required=required, description=description
    )


def _answered(
    name: str, description: str, *statuses: int, schema: dict[str, Any] = TEXT, required: bool = True
) -> OpenApiParameter:
    return OpenApiParameter(
        name,
        schema,
        OpenApiParameter.HEADER,
        required=required,
        description=description,
        response=list(statuses),
    )


IDEMPOTENCY_KEY = _asked(
    "Idempotency-Key",
    "Names your wish: a new value for a new one, the same whenever you repeat it. Bare or in quotes.",
    required=True,
    pattern=keys.PATTERN,
)
SEEN_VERSION = _asked(
    "If-Match", 'The version of the resource that you saw, as `"12"`; 412 if it has changed.'
)
IF_NONE_MATCH = _asked("If-None-Match", "The ETag you have, or several, or *. Compared weakly.")
IF_MATCH = _asked("If-Match", "The ETag that you saw; 412 if it has changed. Compared weakly. Optional.")
PREFER = _asked(
    "Prefer", "`wait=n`: answer when something changes, or after n seconds (at most 5), if there is a place."
)
PRIVATE_HEADERS = [
    _answered("Cache-Control", "private, no-cache", 200),
    _answered("Vary", "Authorization, Accept, Prefer", 200),
]
STATUS_HEADERS = [
    _answered("ETag", "Weak; changes with everything that can be seen, never with a heartbeat.", 200, 304),
    _answered("Cache-Control", "private, no-cache", 200, 304),
    _answered("Vary", "Authorization, Accept, Prefer", 200, 304),
    _answered("Retry-After", "Seconds; absent once it is over.", 200, 304, schema=SECONDS, required=False),
    _answered("Preference-Applied", "`wait=n`, if the wait was granted.", 200, 304, required=False),
]
CANCEL_HEADERS = [
    _answered("Location", "Where to ask what becomes of it.", 202),
    _answered("Retry-After", "Seconds.", 202, schema=SECONDS),
]
ACCEPTED_HEADERS = [
    _answered("Location", "Where to ask what becomes of it.", 200, 202),
    _answered("Idempotency-Key", "The key as it was understood, without quotes.", 200, 202),
    _answered("Retry-After", "Seconds.", 202, schema=SECONDS),
    _answered("Idempotent-Replayed", "true: the key had named this operation before.", 202, required=False),
    _answered("Idempotent-Replayed", "true", 200),
]
