"""Which version of its resource an operation brings, and whether that is news.

The version comes with the request (a ResourceVersion in the payload) or with the answer of the call. Where it
is known before the work, it is looked at before the claim; the fence looks at every one again at the commit.
"""

from collections.abc import Mapping
from hashlib import sha256
from json import dumps
from typing import Any, NamedTuple
from uuid import UUID

from operations.jobs import Job
from operations.models import Category, Operation, Reason
from tasks.handle import OldNews
from tasks.retry import CallFailed


class Brought(NamedTuple):
    """A version of the resource, and a digest of what it says; none of either for a job without versions."""

    version: int | None
    digest: str


class Applied(NamedTuple):
    """The version of the resource that is there."""

    version: int | None
    by: UUID | None
    digest: str


def stated(operation: Operation, payload: Mapping[str, Any]) -> Brought:
    """Give what the request says that it brings."""
    return _brought(operation.resource_version, payload)


def answered(job: Job, answer: Any) -> Brought:
    """Give what the call has brought."""
    return _brought(None if job.version is None else job.version(answer), answer)


def refuse_old(operation: Operation, brought: Brought, applied: Applied) -> None:
    """Stop here if there is a newer one, or this one from another operation.

    Raises:
        OldNews: it need not be applied.
        CallFailed: the same version was applied with other content, and nobody can know which is right.
    """
    if brought.version is None or applied.version is None or applied.by == operation.id:
        return
    if brought.version < applied.version:
        raise OldNews(Reason.STALE_VERSION)
    if brought.version == applied.version and brought.digest == applied.digest:
        raise OldNews(Reason.DUPLICATE)
    if brought.version == applied.version:
        raise CallFailed(
            Category.INVALID_INPUT, f"version {brought.version} was applied before with other content"
        )


def _brought(version: int | None, content: Any) -> Brought:
    if version is None:
        return Brought(None, "")
    return Brought(version, sha256(dumps(content, sort_keys=True, default=str).encode()).hexdigest())
