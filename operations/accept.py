"""Turn a request into an operation, or find the one that its key already names."""

import logging
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import uuid_utils.compat
from django.conf import settings
from django.db import OperationalError, transaction
from psycopg.errors import LockNotAvailable

from operations import holds, jobs, lifecycle, metrics, recent, secrecy, statements
from operations.certainty import WEB_PAUSES, afresh, certain
from operations.crashpoints import crashpoint
from operations.jobs import Job
from operations.keys import LIVES_BY_CONTRACT, fingerprint, key_hash
from operations.lifecycle import AS_IT_STANDS, Found
from operations.models import Operation, ResourceFence
from operations.publish import publish, publisher
from operations.reminders import reminders

log = logging.getLogger(__name__)

# Note [Robust callbacks have names]
# When a robust callback fails, Django 5.2 logs its __qualname__. A partial has none, and so the failure would
# rise after all, as an AttributeError that comes after the commit. So callbacks are lambdas, not partials.


class KeyReused(Exception):
    """The key names an operation that was asked for with another request."""


class KeyInProgress(Exception):
    """The first request with this key has not been committed yet, and the bounded wait for it is over."""


class TooDeep(Exception):
    """A follow-up of a follow-up of a follow-up, and so on, past the limit."""


class NotAccepted(Exception):
    """A person has stopped the acceptance of this kind of request."""


class VersionMoved(Exception):
    """The client saw a version of the resource that is no longer the applied one."""


class Request(NamedTuple):
    """One request as it counts for accepting: who asks for which job, under which key, and with what."""

    job: Job
    owner_id: int
    key: str
    fingerprint: str
    payload: dict[str, Any]  # as it is stored: as sent, and whose it is
    values: dict[str, Any]  # as the job's code sees it; names of resources are made of these
    seen_version: str | None = None  # of the resource; None: the client does not say
    source: str = "api"
    request_id: str = ""
    correlation_id: str = ""
    parent: UUID | None = None  # of a follow-up
    depth: int = 0


class Accepted(NamedTuple):
    """The operation that the key names, whether this request made it, and what became of it."""

    operation: Operation
    created: bool
    result: Any = None
    error: Any = None


def accept(request: Request) -> Accepted:
    """Insert the operation and tell a worker; or, when the key is taken, give the operation as it stands now.

    One statement decides: the key's unique constraint lets one of several rivals through; the others wait for
    it and find its row. Opens a transaction; inside a caller's it commits with that.

    Raises:
        KeyReused: another request has this key.
        KeyInProgress: the first request with this key is still uncommitted after LOCK_TIMEOUT_MS.
        VersionMoved: `seen_version` is not the resource's applied version.
        NotAccepted: a person has stopped it.
    """
    crashpoint("accept.before_insert")
    found = _insert(request)
    if found is None:
        return _repeat_or_refuse(request)
    recent.note(request.owner_id, request.job.name, request.key)
    if found.request_hash is not None:
        return _repeated(request, found)
    _announce(found.operation)
    return Accepted(found.operation, created=True)


def follow_up(parent: Operation, job_type: str, payload: dict[str, Any]) -> None:
    """Accept an operation that follows from `parent`, for its owner; must be in its finishing transaction.

    The same payload is accepted once, however often the transaction is repeated.

    Raises:
        operations.jobs.NoSuchJob: no job has that name.
        TooDeep: more than MAX_FOLLOW_UPS led here; two jobs may follow each other for ever.
        KeyReused: the owner has used its key, which can be foreseen, for a request of their own.
        rest_framework.serializers.ValidationError: the job does not take this payload.
    """
    job = jobs.get(job_type)
    if parent.depth >= settings.MAX_FOLLOW_UPS:
        raise TooDeep(
            f"{job_type} would be follow-up {parent.depth + 1} in a row; at most {settings.MAX_FOLLOW_UPS}"
        )
    stored = job.payload.store(payload, owner_id=parent.owner_id)
    values = job.validate(stored)
    digest = fingerprint(method="FOLLOW", path="", job_type=job_type, media_type="", body=stored)
    request = Request(
        job=job,
        owner_id=parent.owner_id,
        key=f"{parent.id}:{digest[3:27]}",
        fingerprint=digest,
        payload=stored,
        values=values,
        source="follow_up",
        request_id=parent.request_id,
        correlation_id=parent.correlation_id,
        parent=parent.id,
        depth=parent.depth + 1,
    )
    found = _insert_once(request, uuid_utils.compat.uuid7())
    crashpoint("follow_up.accepted")
    if found is None:
        find_repeat(request)
    elif found.request_hash is not None:
        _repeated(request, found)
    else:
        _announce(found.operation)


def expected_repeat(request: Request) -> Accepted | None:
    """Give the operation that this request made before, if this process has seen it accepted just now.

    Raises:
        KeyReused: the key was used for another request.
    """
    if not recent.has(request.owner_id, request.job.name, request.key):
        return None
    return afresh(lambda: find_repeat(request))


def find_repeat(request: Request) -> Accepted | None:
    """Give the operation that this very request made before, if any.

    Raises:
        KeyReused: the key was used for another request.
    """
    job = request.job
    values = {"owner_id": request.owner_id, "job_type": job.name, "key": request.key, "key_ttl": job.key_ttl}
    row = statements.row(KEY_STANDS, values)
    return None if row is None else _repeated(request, lifecycle.found(row))


KEY_STANDS = f"""
    SELECT {AS_IT_STANDS}, k.request_hash
    FROM operations_idempotencyrecord AS k
    JOIN operations_operation AS o ON o.id = k.operation_id
    JOIN operations_operationdata AS d ON d.operation_id = o.id
    WHERE k.user_id = %(owner_id)s AND k.job_type = %(job_type)s
        AND k.idempotency_key = %(key)s AND {LIVES_BY_CONTRACT}"""  # noqa: S608 (only constants are put in)


def applied_version(resource: str) -> int:
    """Give the version of `resource` that If-Match may name; 0 if nothing was ever applied to it."""
    fence = ResourceFence.objects.filter(resource=resource).only("applied_version").first()
    return (fence and fence.applied_version) or 0


def applied_at(resource: str) -> datetime | None:
    """Tell when the version that If-Match may name was applied; None: never, or it is no longer known."""
    by = ResourceFence.objects.filter(resource=resource).values("applied_by")
    return Operation.objects.filter(id__in=by).values_list("finished_at", flat=True).first()


def _announce(operation: Operation) -> None:
    """Count and log an acceptance, and tell a worker, once it is committed."""
    transaction.on_commit(lambda: _tell(operation), robust=True)  # See Note [Robust callbacks have names]


def _tell(operation: Operation) -> None:
    crashpoint("accept.committed")
    metrics.ACCEPTED.labels(operation.job_type).inc()
    metrics.KEYS.labels(operation.job_type, "new").inc()
    digest = {"idempotency_key_hash": key_hash(operation.idempotency_key)}
    log.info("operation.accepted", extra={**operation.log_fields(), **digest, "status_to": operation.status})
    if operation.published_at is not None:
        publish(operation)
    elif operation.hold_id is None:  # See Note [Hints enough]; what is held, the relay publishes.
        reminders.owe(operation)


def _insert(request: Request) -> Found | None:
    operation_id = uuid_utils.compat.uuid7()
    try:
        return certain(
            lambda: _insert_once(request, operation_id),
            learn=lambda: _inserted(operation_id),
            pauses=WEB_PAUSES,
        )
    except OperationalError as error:
        if not isinstance(error.__cause__, LockNotAvailable):
            raise
        metrics.KEYS.labels(request.job.name, "in_progress").inc()
        raise KeyInProgress("the first request with this Idempotency-Key is still being accepted") from error


def _inserted(operation_id: UUID) -> Found | None:
    """Learn whether the insertion was committed although its answer was lost."""
    operation = Operation.objects.filter(id=operation_id).first()
    return None if operation is None else Found(operation)


def _insert_once(request: Request, operation_id: UUID) -> Found | None:
    job, payload = request.job, request.payload
    return lifecycle.accept(
        id=operation_id,
        job_type=job.name,
        schema_version=job.schema_version,
        owner_id=request.owner_id,
        source=request.source,
        max_attempts=job.retry.attempts,
        deadline=job.deadline,
        resource=job.resource_of(request.values),
        resource_version=job.version_in(payload),
        seen_version=request.seen_version,
        payload=secrecy.sealed(job, payload),
        idempotency_key=request.key,
        request_hash=request.fingerprint,
        key_ttl=job.key_ttl,
        request_id=request.request_id,
        correlation_id=request.correlation_id or request.request_id,
        ordered=job.ordered,
        published=not publisher.has_plenty(job.name, ask=request.parent is None),
        parent=request.parent,
        depth=request.depth,
        actor=f"user:{request.owner_id}" if request.parent is None else f"operation:{request.parent}",
    )


def _repeated(request: Request, found: Found) -> Accepted:
    """Give what the request made before, if it was this one and not another with its key."""
    if found.request_hash != request.fingerprint:
        metrics.KEYS.labels(request.job.name, "mismatch").inc()
        raise KeyReused("this Idempotency-Key was used for another request; send a new key for a new request")
    metrics.KEYS.labels(request.job.name, "replayed").inc()
    return Accepted(found.operation, created=False, result=found.result, error=found.error)


def _repeat_or_refuse(request: Request) -> Accepted:
    repeated = find_repeat(request)
    if repeated is None:
        if holds.refuses(request.job.name, owner_id=request.owner_id):
            raise NotAccepted(f"{request.job.name} is not accepted just now; the key has not been used up")
        if request.seen_version is None:  # it was not accepted a moment ago, or a rival gave the key back
            raise KeyInProgress("the first request with this Idempotency-Key is still being accepted")
        raise VersionMoved(
            f"{request.job.resource_of(request.values)} is no longer at version {request.seen_version}"
        )
    return repeated
