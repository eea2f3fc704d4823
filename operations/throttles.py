"""Hold the users of the API to their quotas, and tell them how they stand."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from operations.quotas import POSTS, READS, Standing


class UserQuota(BaseThrottle):
    """One quota for posting, one for reading; both a user's, whatever the token."""

    _standing: Standing | None = None

    def allow_request(self, request: Request, view: object) -> bool:
        """Count the request, and say whether it may go on."""
        if request.user is None or request.user.pk is None:
            return True  # a view that answers anybody
        quota = READS if request.method in ("GET", "HEAD", "OPTIONS") else POSTS
        self._standing = quota.take(int(request.user.pk))
        request._request.quota_standing = self._standing  # type: ignore[attr-defined]
        return self._standing is None or self._standing.granted

    def wait(self) -> float | None:
        """Give the seconds until a request is granted again."""
        return None if self._standing is None else float(self._standing.reset_seconds)


class QuotaHeaders:
    """Answer with RateLimit and RateLimit-Policy where a quota was counted."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        """Wrap the next handler."""
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        standing: Standing | None = getattr(request, "quota_standing", None)
        for name, value in ({} if standing is None else standing.headers).items():
            response[name] = value
        return response
