"""The line to the gateway, under Stripe's SDK: one try, bounded, and honest about what was sent."""

import ssl
from collections.abc import Mapping
from typing import Any, NoReturn
from urllib.parse import urlsplit

import httpx
import stripe
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from tasks.retry import CallFailed

DEPENDENCY = "payments-gateway"
LARGEST_ANSWER_BYTES = 1_000_000


class Line(stripe.HTTPClient):
    """An HTTP client for the SDK. Of its failures it says whether the request can have arrived."""

    name = "httpx"

    def __init__(self) -> None:
        """Keep connections: one pool a process."""
        super().__init__()
        self._client = httpx.Client(
            timeout=httpx.Timeout(settings.STRIPE_TIMEOUT_SECONDS, connect=settings.STRIPE_CONNECT_SECONDS),
            follow_redirects=False,
            trust_env=False,
        )

    def request(
        self, method: str, url: str, headers: Mapping[str, str] | None, post_data: Any = None, **beside: Any
    ) -> tuple[str, int, Mapping[str, str]]:
        """Send it once and give body, status and headers.

        Raises:
            CallFailed: with what is certain about the request.
        """
        _refuse_strangers(url)
        try:
            with self._client.stream(method, url, headers=headers, content=post_data) as answer:
                return _body(answer), answer.status_code, answer.headers
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            _say_not_sent(error)
        except httpx.HTTPError as error:
            raise CallFailed("outcome_unknown", type(error).__name__, DEPENDENCY) from error

    def close(self) -> None:
        self._client.close()


def _say_not_sent(error: httpx.HTTPError) -> NoReturn:
    """Nothing has left: no name, no connection, or no trust in who answered."""
    distrusted = isinstance(_root(error), ssl.SSLCertVerificationError)
    what = "its certificate is not to be trusted" if distrusted else type(error).__name__
    raise CallFailed(
        "dependency_unavailable", what, DEPENDENCY, certainty="not_sent", shuts=distrusted
    ) from error


def _root(error: BaseException) -> BaseException:
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error


def _body(answer: httpx.Response) -> str:
    if answer.is_redirect:
        raise CallFailed("outcome_unknown", f"HTTP {answer.status_code}: we follow nobody", DEPENDENCY)
    read = bytearray()
    for part in answer.iter_bytes():
        read += part
        if len(read) > LARGEST_ANSWER_BYTES:
            raise CallFailed("outcome_unknown", f"an answer of over {LARGEST_ANSWER_BYTES} bytes", DEPENDENCY)
    return read.decode(errors="replace")


def _refuse_strangers(url: str) -> None:
    host = urlsplit(url).hostname
    if host not in settings.STRIPE_HOSTS:
        raise ImproperlyConfigured(
            f"STRIPE_API_BASE leads to {host!r}, and STRIPE_HOSTS allows {settings.STRIPE_HOSTS}"
        )
