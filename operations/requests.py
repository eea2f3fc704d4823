"""Give every HTTP request an id: the client's if sane, else ours; echoed, logged, carried to the worker."""

import re
import uuid
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

SANE = re.compile(r"[A-Za-z0-9._:-]{1,100}")


def sane(given: str) -> str:
    """Give an id that a client sent, or nothing if it would not be safe in a log line or a header."""
    return given if SANE.fullmatch(given) else ""


class RequestID:
    """Set request.id and answer with it as X-Request-ID."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        """Wrap the next handler."""
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        given = sane(request.headers.get("X-Request-ID", ""))
        request.id = given or str(uuid.uuid4())  # type: ignore[attr-defined]
        response = self.get_response(request)
        response["X-Request-ID"] = request.id  # type: ignore[attr-defined]
        return response
