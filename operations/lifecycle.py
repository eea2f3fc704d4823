"""Every move of an operation, in the order of its life.

A move gives the operation as it now stands, or None when the row was not as the move expects: somebody else
was first, and nothing has changed. Each is one statement; those that need two open a transaction and say so.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.conf import settings
from django.db import transaction
from psycopg.types.json import Jsonb

from operations import dead_letters, deadlines, jobs, statements
from operations.arrows import (
    COLUMNS,
    HISTORY,
    LOCKED,
    PROCESSING,
    SELECTED,
    SELECTED_OF_O,
    Arrow,
    from_row,
    one,
)
from operations.claims import HOLDS_CLAIM, IN_TIME, Claim
from operations.crashpoints import crashpoint
from operations.dead_letters import Failure
from operations.deadlines import PASSED
from operations.effects import RESERVED, UNRESOLVED
from operations.holds import HOLD_ID, LET_THROUGH, NEW_IS_HELD, NEW_IS_REFUSED, NOT_HELD
from operations.keys import LIVES_BY_CONTRACT
from operations.models import WAITING, Category, Operation, Reason, Resolution, Status
from operations.order import NOT_BLOCKED, OVERTAKING, stand_still

# Note [The row decides]
# Nothing is read first and written afterwards on the strength of it. A move's WHERE names the status it
# expects and, from `processing`, the claim's token; PostgreSQL lets one of several rivals through. Times that
# decide are the database's own (clock_timestamp): two workers' clocks may differ, the row has one.

END_CLAIM = "lease_expires_at = NULL, claimed_by = ''"
NOW = "run_at = clock_timestamp(), published_at = clock_timestamp()"  # for the caller to publish
SOON = "run_at = clock_timestamp() + make_interval(secs => %(delay)s), published_at = NULL"


class Found(NamedTuple):
    """An operation as its owner is told of it."""

    operation: Operation
    result: Any = None
    error: Any = None
    request_hash: str | None = None  # of the request that made it before; None: this one has, or nobody asks


class Glance(NamedTuple):
    """What a worker sees before it decides to claim."""

    operation: Operation
    payload: dict[str, Any]
    due: bool  # waits, and its time has come by the database's clock
    overdue: bool  # its deadline has passed
    put_off: bool  # it would have, were it not put off
    blocked: bool  # one before it in line is not done
    # Version, operation and digest of what was applied to the resource; asked if this one states a version.
    applied: tuple[int | None, UUID | None, str]
    held: bool  # a hold is over it that its message does not name


AS_IT_STANDS = f"{SELECTED_OF_O}, NULL, {HOLD_ID}, d.result, d.error"  # o: the operation, d: its data
# Looks for the key first: a repeat is one statement, and leaves no trace of an insertion that failed. A key
# that is over is taken over in its row, by one of several rivals: for the others the row names, after their
# wait, an operation that is too new for them to see, and so it is not over. See Note [How long a key lives].
ACCEPT = f"""
    WITH taken AS (
        SELECT k.operation_id, k.request_hash
        FROM operations_idempotencyrecord AS k JOIN operations_operation AS o ON o.id = k.operation_id
        WHERE k.user_id = %(owner_id)s AND k.job_type = %(job_type)s
            AND k.idempotency_key = %(idempotency_key)s AND {LIVES_BY_CONTRACT}
    ), key AS (
        INSERT INTO operations_idempotencyrecord AS k
            (user_id, job_type, idempotency_key, request_hash, operation_id)
        SELECT %(owner_id)s, %(job_type)s, %(idempotency_key)s, %(request_hash)s, %(id)s
        WHERE (%(seen_version)s::text IS NULL OR %(seen_version)s = COALESCE((
            SELECT applied_version::text FROM operations_resourcefence WHERE resource = %(resource)s), '0'))
            AND (%(parent)s::uuid IS NOT NULL OR NOT {NEW_IS_REFUSED})
            AND NOT EXISTS (SELECT FROM taken)
        ON CONFLICT (user_id, job_type, idempotency_key) DO UPDATE
            SET request_hash = excluded.request_hash, operation_id = excluded.operation_id,
                created_at = clock_timestamp()
            WHERE NOT (SELECT {LIVES_BY_CONTRACT} FROM operations_operation AS o WHERE o.id = k.operation_id)
        RETURNING operation_id
    ), line AS (
        INSERT INTO operations_resourcesequence AS s (resource, next_seq)
        SELECT %(resource)s, 2 FROM key WHERE %(ordered)s
        ON CONFLICT (resource) DO UPDATE SET next_seq = s.next_seq + 1
        RETURNING next_seq - 1 AS place
    ), created AS (
        INSERT INTO operations_operation
            (id, job_type, schema_version, owner_id, source, status, reason, step, runs, attempt,
             max_attempts, interruptions, waits, replays, deadline_at, resource, waiting_for,
             idempotency_key, request_id, correlation_id, claimed_by, published_at, version, resource_seq,
             parent, depth, resource_version)
        SELECT operation_id, %(job_type)s, %(schema_version)s, %(owner_id)s, %(source)s,
            'queued', 'accepted', '', 0, 0, %(max_attempts)s, 0, 0, 0,
            clock_timestamp() + %(deadline)s, %(resource)s, '',
            %(idempotency_key)s, %(request_id)s, %(correlation_id)s, '',
            CASE WHEN %(published)s AND NOT {NEW_IS_HELD} THEN clock_timestamp() END, 1, place,
            %(parent)s::uuid, %(depth)s, %(resource_version)s::bigint
        FROM key LEFT JOIN line ON true RETURNING *
    ), data AS (
        INSERT INTO operations_operationdata (operation_id, payload) SELECT id, %(payload)s FROM created
    ), history AS (
        {HISTORY}
        SELECT id, '', status, reason, 0, 0, '', %(actor)s, created_at FROM created
    ), named AS (
        SELECT *, NULL AS request_hash FROM created
        UNION ALL
        SELECT o.*, request_hash FROM taken JOIN operations_operation AS o ON o.id = operation_id
    )
    SELECT {SELECTED}, NULL,
        CASE WHEN published_at IS NULL OR request_hash IS NOT NULL THEN {HOLD_ID} END,
        d.result, d.error, request_hash
    FROM named AS o
    LEFT JOIN operations_operationdata AS d ON d.operation_id = o.id AND request_hash IS NOT NULL"""  # noqa: S608 (only constants are put in)
ACCEPT = statements.squeezed(ACCEPT)


def accept(
    *,
    seen_version: str | None,
    payload: dict[str, Any],
    ordered: bool = False,
    published: bool = True,
    parent: UUID | None = None,
    depth: int = 0,
    resource_version: int | None = None,
    **columns: Any,
) -> Found | None:
    """Insert an operation, its key, payload and first history; or give the one that the key names already.

    None: the version moved, its kind is not accepted just now, or a rival's transaction has taken the key
    meanwhile. One that is held is not to be published: `published_at` is None.

    `published` says that the caller sends the message. While another transaction holds the same key
    uncommitted, the statement waits for it.

    Raises:
        django.db.OperationalError: LOCK_TIMEOUT_MS passed in that wait.
    """
    line = {"ordered": ordered, "parent": parent, "depth": depth}
    stated = {"published": published, "resource_version": resource_version}
    row = statements.row(
        ACCEPT, {"seen_version": seen_version, "payload": Jsonb(payload), **line, **stated, **columns}
    )
    return None if row is None else found(row)


def found(row: Sequence[Any]) -> Found:
    """Read a row of AS_IT_STANDS, with the digest of its request or without."""
    operation = from_row(row)
    operation.hold_id, *rest = row[len(COLUMNS) + 1 :]
    return Found(operation, *rest)


# What is there of the resource, for one that brings a version with its request; others do not ask.
APPLIED = """CASE WHEN o.resource_version IS NOT NULL THEN (
        SELECT jsonb_build_array(applied_version, applied_by, applied_hash)
        FROM operations_resourcefence WHERE resource = o.resource) END"""
GLANCED = f"""
    SELECT {SELECTED_OF_O}, NULL, d.payload,
        o.status IN ('queued', 'retry_scheduled') AND o.run_at <= clock_timestamp(),
        o.deadline_at <= clock_timestamp(), NOT {NOT_BLOCKED}, {APPLIED}, NOT {LET_THROUGH}
    FROM {{rows}} AS o JOIN operations_operationdata AS d ON d.operation_id = o.id"""  # noqa: S608
LOOK = f"""{GLANCED.format(rows="operations_operation")}
    WHERE o.id = %(id)s AND o.job_type = %(job_type)s"""


def look(id: UUID, *, job_type: str, released: Sequence[int] = ()) -> Glance | None:
    """Read the operation that a message names; None if there is none of that id and job type.

    `released` are the holds that the message names. See Note [A hold lets pass what names it].
    """
    values = {"id": id, "job_type": job_type, "skip": jobs.skipping_the_dead(), "released": list(released)}
    row = statements.row(LOOK, values)
    return None if row is None else glance(row)


def glance(row: Sequence[Any]) -> Glance:
    """Read a row that GLANCED selects."""
    operation = from_row(row)
    payload, due, passed, blocked, applied, held = row[len(COLUMNS) + 1 :]
    overdue = passed and deadlines.have_passed(operation)
    put_off = passed and not overdue
    return Glance(operation, payload, due, overdue, put_off, blocked, _applied(applied), held)


def _applied(found: list[Any] | None) -> tuple[int | None, UUID | None, str]:
    version, by, digest = found or (None, None, "")
    return version, by and UUID(by), digest


_wait = Arrow(
    sources=WAITING,
    to=Status.RETRY_SCHEDULED,
    # A pause is not cut short; and whose outcome is unknown is said to wait for that before all else.
    where="reason NOT IN (%(reason)s, 'outcome_unknown') AND run_at <= clock_timestamp()",
    change=f"waits = o.waits + 1, waiting_for = %(waiting_for)s, {SOON}",
    owes="false",
)


def wait(id: UUID, *, reason: str, waiting_for: str, actor: str) -> Operation | None:
    """Put a waiting operation off, no attempt spent. Waiting on for the same reason is not another move."""
    values = {"delay": settings.LOCK_POLL_SECONDS, "waiting_for": waiting_for[:300]}
    return _wait(id, reason=reason, actor=actor, **values) or _wait_on(id, reason=reason, **values)


def _wait_on(id: UUID, **values: Any) -> Operation | None:
    return one(
        f"""
        UPDATE operations_operation AS o
        SET waits = waits + 1, waiting_for = %(waiting_for)s, version = version + 1, {SOON}
        WHERE id = %(id)s AND status = 'retry_scheduled' AND reason IN (%(reason)s, 'outcome_unknown')
            AND run_at <= clock_timestamp()
        RETURNING {SELECTED}""",  # noqa: S608
        id=id,
        **values,
    )


# A job that no live worker has in its code, whatever queues it serves. Judged only while one worker has been
# live for the whole grace time: right after a start, nobody can know who is still to come.
LIVE = """w.kind = 'worker'
    AND w.last_seen_at > clock_timestamp() - make_interval(secs => %(silence)s)"""
UNKNOWN_TYPE = f"""
    EXISTS (SELECT FROM operations_workernode AS w
        WHERE {LIVE} AND w.started_at <= clock_timestamp() - make_interval(secs => %(known_after)s))
    AND NOT EXISTS (SELECT FROM operations_workernode AS w WHERE {LIVE} AND w.job_types ? o.job_type)"""  # noqa: S608
_set_aside = Arrow(
    sources=WAITING,
    to=Status.RETRY_SCHEDULED,
    where=f"reason <> 'unknown_job_type' AND {UNKNOWN_TYPE}",
    change=f"waits = o.waits + 1, waiting_for = %(waiting_for)s, {SOON}",
    owes="false",
)
_give_up_on_type = Arrow(
    sources=WAITING,
    to=Status.FAILED_PERMANENT,
    where=f"reason = 'unknown_job_type' AND run_at <= clock_timestamp() AND {UNKNOWN_TYPE}",
    change="finished_at = clock_timestamp(), waiting_for = ''",
)


def judging_types() -> dict[str, float]:
    """Give the values that UNKNOWN_TYPE needs."""
    return {
        "silence": settings.NODE_SILENCE_SECONDS,
        "known_after": settings.UNKNOWN_TYPE_GRACE_SECONDS,
    }


def set_aside(operation: Operation, *, actor: str) -> Operation | None:
    """Let an operation whose job no live worker knows wait for one that does; after that, bury it.

    It is due again when the patience for its job is over. Opens a transaction for the dead letter. None: its
    job is known after all.
    """
    sentence = f"a worker that knows the job {operation.job_type}"
    if operation.reason == Reason.OUTCOME_UNKNOWN:  # which it stays, and is looked up when there is one
        waits = {"waiting_for": sentence, "delay": settings.UNKNOWN_TYPE_GRACE_SECONDS}
        return _wait_on(operation.id, reason=operation.reason, **waits)
    values: dict[str, Any] = {"actor": actor, "reason": Reason.UNKNOWN_JOB_TYPE, **judging_types()}
    if operation.reason != Reason.UNKNOWN_JOB_TYPE:
        patience = settings.UNKNOWN_TYPE_PATIENCE_SECONDS
        return _set_aside(operation.id, waiting_for=sentence, delay=patience, **values)
    failure = Failure(category=Category.BUG, message=f"no live worker knows the job {operation.job_type!r}")
    return die(_give_up_on_type, operation.id, failure=failure, **values)


# "resource <> ''" says nothing new, but without it a prepared plan can't know that the partial index will do.
WAKE = f"""
    UPDATE operations_operation
    SET run_at = LEAST(run_at, clock_timestamp()), published_at = clock_timestamp(), version = version + 1
    WHERE id = (
        SELECT id FROM operations_operation AS o
        WHERE resource = %(resource)s AND resource <> '' AND status IN ('queued', 'retry_scheduled')
            AND (reason = 'lock_contended' OR resource_seq IS NOT NULL AND run_at <= clock_timestamp())
            AND {NOT_BLOCKED} AND {NOT_HELD}
        ORDER BY resource_seq NULLS LAST, created_at LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED)
    RETURNING {SELECTED}"""  # noqa: S608


def wake(resource: str) -> Operation | None:
    """Make the next operation of `resource` due now, for the caller to publish: in line, else in waiting."""
    return one(WAKE, resource=resource, skip=jobs.skipping_the_dead())


def forget(after_commit_ids: Sequence[int]) -> None:
    """Delete AfterCommit rows that have nothing left to do."""
    statements.rows(FORGET, {"ids": list(after_commit_ids)})


FORGET = "DELETE FROM operations_aftercommit WHERE id = ANY(%(ids)s::bigint[]) RETURNING id"


_refuse = Arrow(
    sources=WAITING,
    to=Status.FAILED_PERMANENT,
    where=f"""(%(reason)s NOT IN ('deadline_passed', 'compensation_failed') OR {PASSED})
        AND NOT (%(spares)s AND {RESERVED})""",
    change="finished_at = clock_timestamp(), waiting_for = ''",
)


def refuse(id: UUID, *, reason: str, failure: Failure, actor: str, spares: bool = False) -> Operation | None:
    """End an operation that nobody holds: an invalid payload, or a deadline passed. Opens a transaction.

    `spares` says that its job is not known here: then what has reserved something is left to who knows it.
    """
    values = {"spares": spares, **deadlines.values()}
    return die(_refuse, id, reason=reason, failure=failure, actor=actor, **values)


_pass_over = Arrow(
    sources=WAITING,
    to=Status.IGNORED,
    where="""step = '' AND compensating_for = '' AND resource_version <= (
        SELECT applied_version FROM operations_resourcefence AS f
        WHERE f.resource = o.resource AND f.applied_by IS DISTINCT FROM o.id)""",
    change="finished_at = clock_timestamp(), waiting_for = ''",
)


def pass_over(id: UUID, *, reason: str, actor: str) -> Operation | None:
    """End an operation that nobody holds, has done nothing and brings nothing new. Opens a transaction."""
    with transaction.atomic():
        return _with_its_letter(_pass_over(id, reason=reason, actor=actor))


# A run that begins with an outcome unknown spends no attempt. Asked of those alone that have run before.
LOOKS_UP = f"(runs > 0 AND {UNRESOLVED})"
CLAIMABLE = f"""
    job_type = %(job_type)s AND status IN ('queued', 'retry_scheduled')
    AND run_at <= clock_timestamp() AND deadline_at > clock_timestamp()
    AND (attempt < max_attempts OR {LOOKS_UP}) AND {NOT_BLOCKED} AND {LET_THROUGH}"""
CLAIM = f"""
    {LOCKED}, seen AS (
        SELECT id, status, {LOOKS_UP}::int AS look_up FROM locked AS o WHERE {CLAIMABLE}
    ), moved AS (
        UPDATE operations_operation AS o
        SET status = 'processing', reason = '', version = o.version + 1, runs = o.runs + 1,
            attempt = o.attempt + 1 - look_up, lookups = o.lookups + look_up,
            claim_token = %(token)s, claimed_by = %(actor)s, waiting_for = '',
            started_at = clock_timestamp(),
            first_started_at = COALESCE(o.first_started_at, clock_timestamp()),
            lease_expires_at = clock_timestamp() + make_interval(secs => %(lease)s)
        FROM seen WHERE o.id = seen.id
        RETURNING o.*, seen.status AS from_status, look_up
    ), history AS (
        {HISTORY}
        SELECT id, from_status, status, reason, runs, attempt, '', %(actor)s, started_at FROM moved
    ), fenced AS (
        INSERT INTO operations_resourcefence AS f (resource, fence, applied_hash)
        SELECT resource, 1, '' FROM moved WHERE resource <> ''
        ON CONFLICT (resource) DO UPDATE SET fence = f.fence + 1
        RETURNING fence, applied_version, applied_by, applied_hash
    )
    SELECT {SELECTED}, NULL, set_config('synchronous_commit', 'off', true),
        fence, applied_version, applied_by, COALESCE(applied_hash, ''), look_up = 1
    FROM moved LEFT JOIN fenced ON true"""  # noqa: S608

# For one whose deadline is put off: asked by others, too, it would cost them a tenth of a claim.
CLAIM_PUT_OFF = statements.squeezed(CLAIM.replace("deadline_at > clock_timestamp()", f"NOT {PASSED}"))

# Note [A claim may be lost with the database's last moments]
# CLAIM alone commits without waiting for the disk. If the server dies before the claim is on disk, the row is
# waiting again; the worker that believed in the claim fails its proof, because nobody can guess its random
# token.


def claim(
    id: UUID,
    *,
    job_type: str,
    worker: str,
    token: UUID,
    put_off: bool = False,
    skips_in: str = "",
    released: Sequence[int] = (),
) -> Claim | None:
    """Take a due operation: a new run, an attempt spent, the fence raised. None: there is nothing to take.

    `token` is random (uuid4) and names this claim from here on. `skips_in` is the resource in whose line it
    may overtake the dead: then it opens a transaction. `put_off` says that its deadline is.
    """
    sql = CLAIM_PUT_OFF if put_off else CLAIM
    values = {
        "id": id,
        "job_type": job_type,
        "token": token,
        "actor": worker[:100],
        "lease": settings.LEASE_SECONDS,
        "released": list(released),
        **deadlines.values(),
    }
    row = _claimed_in_line(skips_in, sql, values) if skips_in else statements.row(sql, values)
    return None if row is None else Claim(from_row(row), token, *row[len(COLUMNS) + 2 :])


def _claimed_in_line(resource: str, sql: str, values: dict[str, Any]) -> tuple[Any, ...] | None:
    with transaction.atomic():
        stand_still(resource)  # See Note [The line stands still]
        return statements.row(sql, values)


_DONE = f"finished_at = clock_timestamp(), {END_CLAIM}"
# What has no step has no effect; the others are asked.
SETTLED = f"(step = '' OR NOT {UNRESOLVED})"
MAY_SUCCEED = f"{HOLDS_CLAIM} AND {IN_TIME} AND compensating_for = '' AND {SETTLED}"
_succeed = Arrow(sources=PROCESSING, to=Status.SUCCEEDED, where=MAY_SUCCEED, change=_DONE)
_succeed_fenced = Arrow(
    sources=PROCESSING,
    to=Status.SUCCEEDED,
    where=MAY_SUCCEED,
    change=f"resource_version = %(version)s, {_DONE}",
    fenced=True,
)


def succeed(
    claim: Claim, *, hard_limit: float, version: int | None, digest: str, **owed: Any
) -> Operation | None:
    """Finish, as the last statement of the transaction in which the handler wrote.

    None: the token, the lease, the fence or the hard limit (seconds) says no, and all must be rolled back.
    """
    actor = claim.operation.claimed_by
    values: dict[str, Any] = {"token": claim.token, "hard_limit": hard_limit, "actor": actor, **owed}
    if claim.fence is None:
        return _succeed(claim.operation.id, **values)
    fence: dict[str, Any] = {
        "fence": claim.fence,
        "resource": claim.operation.resource,
        "version": version,
        "digest": digest,
    }
    return _succeed_fenced(claim.operation.id, **values, **fence)


# What a job that compensates has reserved is not left behind; and a release ends as it was to end.
NOTHING_LEFT = f"compensating_for = '' AND {SETTLED} AND NOT (%(compensates)s AND {RESERVED})"
_ignore = Arrow(
    sources=PROCESSING, to=Status.IGNORED, where=f"{HOLDS_CLAIM} AND {NOTHING_LEFT}", change=_DONE
)


def ignore(
    claim: Claim,
    *,
    reason: str,
    error: str = "",
    result: dict[str, Any] | None = None,
    compensates: bool = False,
) -> Operation | None:
    """End a run with nothing to do: what it brings is old, or is there already. Opens a transaction.

    None also if that would leave something behind: an effect unknown, or what its job would have to release.
    """
    values = {
        "token": claim.token,
        "result": None if result is None else Jsonb(result),
        "compensates": compensates,
    }
    with transaction.atomic():
        return _with_its_letter(
            _ignore(
                claim.operation.id, reason=reason, error=error, actor=claim.operation.claimed_by, **values
            )
        )


def _with_its_letter(ignored: Operation | None) -> Operation | None:
    """Close the dead letter of one that was replayed: there is nothing left to do."""
    if ignored is not None and ignored.replays:
        dead_letters.resolve(ignored, Resolution.REPLAYED_OK)
    return ignored


# A person may have ordered longer pauses for the job type, its queue or the owner.
LATER = """run_at = clock_timestamp() + make_interval(secs => %(delay)s * COALESCE((
        SELECT max(c.backoff_factor) FROM operations_jobcontrol AS c
        WHERE (cardinality(c.job_types) = 0 OR o.job_type = ANY(c.job_types))
            AND (c.owner_id IS NULL OR c.owner_id = o.owner_id)), 1)), published_at = NULL"""
_retry = Arrow(
    sources=PROCESSING,
    to=Status.RETRY_SCHEDULED,
    where=f"{HOLDS_CLAIM} AND attempt < max_attempts AND {SETTLED}",
    change=f"{LATER}, {END_CLAIM}",
)


def retry(claim: Claim, *, failure: Failure, delay_seconds: float) -> Operation | None:
    """Schedule the next attempt. The due time lives in the row; the relay publishes it then."""
    return _retry(
        claim.operation.id,
        token=claim.token,
        reason=failure.category,
        error=f"{failure.error_class}: {failure.message}",
        problem=Jsonb(failure.as_json()),
        delay=delay_seconds,
        actor=claim.operation.claimed_by,
    )


_put_back = Arrow(
    sources=PROCESSING,
    to=Status.RETRY_SCHEDULED,
    where=f"{HOLDS_CLAIM} AND {SETTLED}",
    change=f"attempt = o.attempt - %(spent)s, {SOON}, {END_CLAIM}",
)


def put_back(
    claim: Claim, *, failure: Failure, delay_seconds: float, reason: str = Reason.DEPENDENCY_HELD
) -> Operation | None:
    """Return a run that could not be: its dependency was shut off, or another has to end before it.

    Its attempt is given back.
    """
    return _put_back(
        claim.operation.id,
        token=claim.token,
        spent=claim.spent,
        reason=reason,
        error=f"{failure.error_class}: {failure.message}",
        problem=Jsonb(failure.as_json()),
        delay=delay_seconds,
        actor=claim.operation.claimed_by,
    )


_look_again = Arrow(
    sources=PROCESSING,
    to=Status.RETRY_SCHEDULED,
    where=f"{HOLDS_CLAIM} AND lookups < %(most)s AND {UNRESOLVED}",
    change=f"{SOON}, {END_CLAIM}",
)


def look_again(claim: Claim, *, failure: Failure, delay_seconds: float) -> Operation | None:
    """Schedule a look-up: what the run has sent may have been done, and nobody knows.

    None also if it has been looked up MAX_LOOKUPS times.
    """
    return _look_again(
        claim.operation.id,
        token=claim.token,
        reason=Reason.OUTCOME_UNKNOWN,
        error=f"{failure.error_class}: {failure.message}",
        problem=Jsonb(failure.as_json()),
        delay=delay_seconds,
        most=settings.MAX_LOOKUPS,
        actor=claim.operation.claimed_by,
    )


# Only to say so does an operation end while nobody knows what became of an effect.
_fail = Arrow(
    sources=PROCESSING,
    to=Status.FAILED_PERMANENT,
    where=f"{HOLDS_CLAIM} AND (%(reason)s = 'outcome_unknown' OR {SETTLED})",
    change=_DONE,
)


def fail(claim: Claim, *, reason: str, failure: Failure) -> Operation | None:
    """End the operation as a dead letter. Opens a transaction.

    None also if an effect may have been sent, nobody knows, and `reason` is another.
    """
    operation = claim.operation
    return die(
        _fail, operation.id, reason=reason, failure=failure, actor=operation.claimed_by, token=claim.token
    )


_hand_back = Arrow(
    sources=PROCESSING,
    to=Status.QUEUED,
    where=f"""{HOLDS_CLAIM}
        AND (interruptions < %(most)s OR attempt < max_attempts OR %(spent)s = 0 OR {UNRESOLVED})""",
    change=f"""attempt = o.attempt - CASE WHEN o.interruptions < %(most)s THEN %(spent)s ELSE 0 END,
        interruptions = o.interruptions + 1, {NOW}, {END_CLAIM}""",
)


def hand_back(claim: Claim, *, error: str) -> Operation | None:
    """Return an interrupted run to the queue, for the caller to publish; none left: None.

    The attempt is given back up to MAX_INTERRUPTIONS times, and counts from then on.
    """
    operation = claim.operation
    return _hand_back(
        operation.id,
        token=claim.token,
        reason=Reason.INTERRUPTED,
        error=error,
        most=settings.MAX_INTERRUPTIONS,
        spent=claim.spent,
        actor=operation.claimed_by,
    )


# Its end is past, or so far ahead that no beat can have written it: then the clock was set back since.
LEASE_OUT = """(lease_expires_at <= clock_timestamp()
    OR lease_expires_at > clock_timestamp() + make_interval(secs => %(lease)s))"""
# The lease is over, or the process that held it is known to be dead.
LEASE_OVER = f"claim_token = %(token)s AND ({LEASE_OUT} OR claimed_by = %(dead)s)"
# Another attempt, or another look-up, which spends none.
IS_LEFT = f"CASE WHEN {UNRESOLVED} THEN lookups < %(most)s ELSE attempt < max_attempts END"
# Who does not know the job does not know whether it could release what is reserved: somebody else will.
SPARED = f"(%(spares)s AND {RESERVED} AND NOT {UNRESOLVED})"
_take_back = Arrow(
    sources=PROCESSING,
    to=Status.RETRY_SCHEDULED,
    where=f"{LEASE_OVER} AND ({IS_LEFT} OR {SPARED})",
    change=f"{SOON}, {END_CLAIM}",
)
_give_up = Arrow(
    sources=PROCESSING,
    to=Status.FAILED_PERMANENT,
    where=f"{LEASE_OVER} AND NOT {IS_LEFT}",
    change=_DONE,
)


def take_back(
    operation: Operation, *, actor: str, delay_seconds: float, dead: str = "", timed_out: bool = False
) -> Operation | None:
    """Free an operation whose worker let the lease end; with no attempt left, bury it in a transaction.

    `dead` is the claimed_by of a process that is known to have ended: its lease need not be waited for.
    `timed_out` says that it was ended because the run had reached its hard limit.
    """
    category, reason, over, what = (
        (Category.TIMEOUT, Category.TIMEOUT, Reason.TIMEOUT_EXHAUSTED, "ended at the hard limit")
        if timed_out
        else (Category.POISON, Reason.WORKER_LOST, Reason.WORKER_LOST, "lost")
    )
    failure = Failure(category=category, message=f"{operation.claimed_by} was {what} in run {operation.runs}")
    over = Reason.COMPENSATION_FAILED if operation.compensating_for else over
    values: dict[str, Any] = {"token": operation.claim_token, "dead": dead, "actor": actor}
    values |= {"lease": settings.LEASE_SECONDS, "most": settings.MAX_LOOKUPS_BEFORE_A_LOSS}
    values["spares"] = jobs.find(operation.job_type) is None
    retried = _take_back(
        operation.id,
        reason=reason,
        error=failure.message,
        problem=Jsonb(failure.as_json()),
        delay=delay_seconds,
        **values,
    )
    return retried or die(_give_up, operation.id, reason=over, failure=failure, **values)


_replay = Arrow(
    sources=(Status.FAILED_PERMANENT,),
    to=Status.QUEUED,
    where=f"(o.resource_seq IS NULL OR NOT EXISTS (SELECT {OVERTAKING}))",
    change=f"""attempt = 0, interruptions = 0, waits = 0, lookups = 0, replays = o.replays + 1,
        compensating_for = CASE WHEN {RESERVED} THEN o.compensating_for ELSE '' END,
        max_attempts = %(max_attempts)s, deadline_at = clock_timestamp() + %(deadline)s,
        finished_at = NULL, cancel_requested_at = NULL, waiting_for = '', {SOON}""",
    owes="false",
)


def replay(
    id: UUID, *, max_attempts: int, deadline: timedelta, actor: str, why: str, reason: str = Reason.REPLAYED
) -> Operation | None:
    """Send a failed operation round again: same id, same key, history kept, a fresh budget.

    It goes on where it was: with its effects, or with their compensation. None also if it is ordered and was
    overtaken.
    """
    values: dict[str, Any] = {"max_attempts": max_attempts, "deadline": deadline, "delay": 0}
    return _replay(id, reason=reason, actor=actor, error=why, **values)


_discard = Arrow(
    sources=(Status.FAILED_PERMANENT,),
    to=Status.IGNORED,
    where=f"NOT {UNRESOLVED} AND NOT (%(compensates)s AND {RESERVED})",
    change="finished_at = clock_timestamp()",
)


def discard(id: UUID, *, actor: str, why: str, compensates: bool = False) -> Operation | None:
    """End a failed operation for good, undone.

    None also if an effect of it may have been sent, or its job compensates and something is left to release.
    """
    return _discard(id, reason=Reason.DISCARDED, actor=actor, error=why, compensates=compensates)


def die(arrow: Arrow, id: UUID, *, failure: Failure, **values: Any) -> Operation | None:
    """Move to failed_permanent and write the dead letter, both or neither. Opens a transaction."""
    with transaction.atomic():
        error = f"{failure.error_class}: {failure.message}" if failure.error_class else failure.message
        operation = arrow(id, error=error, problem=Jsonb(failure.as_json()), **values)
        if operation is not None:
            dead_letters.bury(operation, failure)
            crashpoint("bury.before_commit")
    return operation
