"""Ask the provider what a user owns, and say what kind of failure it is when there is no answer."""

import functools
from typing import Any, Protocol

import httpx
from django.conf import settings
from rest_framework import serializers

from tasks.retry import CallFailed, retry_after_seconds

DEPENDENCY = "inventory-provider"
LARGEST_ANSWER_BYTES = 1_000_000
LARGEST_VERSION = 2**53  # beyond it JSON readers disagree about numbers
OURS = (401, 403)  # our credentials are refused: nobody's operation is at fault
CATEGORIES = {
    400: "invalid_input",
    **dict.fromkeys(OURS, "dependency_unavailable"),
    404: "not_found",
    409: "conflict",
    422: "invalid_input",
    429: "rate_limited",
}


class Asking(Protocol):
    """What a call needs of its run."""

    operation_id: str
    number: int


class Item(serializers.Serializer[Any]):
    """One thing in a snapshot."""

    sku = serializers.CharField(max_length=100)
    quantity = serializers.IntegerField(min_value=0, max_value=2**31 - 1)


class Snapshot(serializers.Serializer[Any]):
    """What the provider answers: everything the user owns, as of its version."""

    user_id = serializers.IntegerField()
    version = serializers.IntegerField(min_value=1, max_value=LARGEST_VERSION)
    items = Item(many=True)


def fetch_snapshot(run: Asking, *, user_id: int) -> dict[str, Any]:
    """Fetch {user_id, version, items: [{sku, quantity}]}.

    Raises:
        CallFailed: with the category that decides what happens next.
    """
    headers = {"X-Operation-ID": run.operation_id, "X-Run": str(run.number)}
    try:
        response = _client().get(f"/v1/users/{user_id}/inventory", headers=headers)
    except httpx.TimeoutException as error:
        raise CallFailed(
            "timeout", f"no answer in {settings.PROVIDER_TIMEOUT_SECONDS} s", DEPENDENCY
        ) from error
    except httpx.TransportError as error:
        raise CallFailed("dependency_unavailable", type(error).__name__, DEPENDENCY) from error
    return _snapshot_in(response, user_id)


@functools.cache
def _client() -> httpx.Client:
    """Keep one client a process: its connections are reused."""
    return httpx.Client(
        base_url=settings.PROVIDER_URL,
        timeout=settings.PROVIDER_TIMEOUT_SECONDS,
        follow_redirects=False,
        trust_env=False,
    )


def _snapshot_in(response: httpx.Response, user_id: int) -> dict[str, Any]:
    if response.status_code != 200:
        category = CATEGORIES.get(response.status_code, "dependency_unavailable")
        after = retry_after_seconds(response.headers.get("Retry-After"))
        raise CallFailed(
            category,
            f"HTTP {response.status_code}",
            DEPENDENCY,
            retry_after_seconds=after,
            shuts=response.status_code in OURS,
        )
    if len(response.content) > LARGEST_ANSWER_BYTES:
        raise CallFailed("invalid_input", f"an answer of {len(response.content)} bytes", DEPENDENCY)
    snapshot = Snapshot(data=_json(response))
    if not snapshot.is_valid() or snapshot.validated_data["user_id"] != user_id:
        raise CallFailed("dependency_unavailable", "the answer is not a snapshot of this user", DEPENDENCY)
    return dict(snapshot.validated_data)


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError as error:
        raise CallFailed("dependency_unavailable", "the answer is not JSON", DEPENDENCY) from error
