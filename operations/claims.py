"""A claim, and what is asked of it between the move that makes it and the one that ends it."""

from typing import Any, NamedTuple
from uuid import UUID

from django.conf import settings
from psycopg.types.json import Jsonb

from operations import statements
from operations.arrows import COLUMNS, LOCKED, SELECTED_OF_O, from_row, one
from operations.effects import UNRESOLVED
from operations.models import Effect, Operation, Status

HOLDS_CLAIM = "claim_token = %(token)s AND lease_expires_at > clock_timestamp()"
IN_TIME = "started_at > clock_timestamp() - make_interval(secs => %(hard_limit)s)"


class Claim(NamedTuple):
    """What a worker holds: the operation, its payload, and how its resource stood when it was claimed."""

    operation: Operation
    token: UUID
    fence: int | None  # None: the operation has no resource
    applied_version: int | None
    applied_by: UUID | None
    applied_hash: str
    looks_up: bool = False  # it began with the outcome of an effect unknown, and spent no attempt

    @property
    def spent(self) -> int:
        """Give the attempts that this run has cost, for who gives them back."""
        return 0 if self.looks_up and not self.operation.sent_again else 1


class ClaimLost(Exception):
    """The operation is no longer this run's. Nothing of ours may be written."""


RECALL = f"""
    SELECT {SELECTED_OF_O}, NULL,
        f.fence, f.applied_version, f.applied_by, COALESCE(f.applied_hash, ''), {UNRESOLVED}
    FROM operations_operation AS o LEFT JOIN operations_resourcefence AS f ON f.resource = o.resource
    WHERE o.id = %(id)s AND o.status = 'processing' AND {HOLDS_CLAIM}"""  # noqa: S608


def recall(id: UUID, *, token: UUID) -> Claim | None:
    """Give the claim that `token` holds, for when the answer to `claim` was lost; None: it was not made."""
    row = statements.row(RECALL, {"id": id, "token": token})
    return None if row is None else Claim(from_row(row), token, *row[len(COLUMNS) + 1 :])


class Renewal(NamedTuple):
    """What a beat hears that has moved the end of a lease."""

    cancel_requested: bool


def extend(id: UUID, *, token: UUID) -> Renewal | None:
    """Move the end of the lease; not a move of the operation. None: the claim was taken back.

    Also if the lease seems to be over: it may be the database's clock that was set. Who takes a claim back
    does so in the row, and finds the lease renewed or not.
    """
    row = statements.row(EXTEND, {"id": id, "token": token, "lease": settings.LEASE_SECONDS})
    return None if row is None else Renewal(*row)


EXTEND = """
    UPDATE operations_operation SET lease_expires_at = clock_timestamp() + make_interval(secs => %(lease)s)
    WHERE id = %(id)s AND status = 'processing' AND claim_token = %(token)s
    RETURNING cancel_requested_at IS NOT NULL"""


OUTCOME = f"""
    SELECT {SELECTED_OF_O}, a.id
    FROM operations_operation AS o
    LEFT JOIN operations_aftercommit AS a ON a.operation_id = o.id AND a.claim_token = o.claim_token
    WHERE o.id = %(id)s AND o.claim_token = %(token)s"""  # noqa: S608


def outcome(claim: Claim) -> Operation | None:
    """Give the operation if this claim has moved it; None if it has not and still may.

    For when the answer to a move was lost: the token tells whose the row is.

    Raises:
        ClaimLost: it is another's by now.
    """
    found = one(OUTCOME, id=claim.operation.id, token=claim.token)
    if found is None:
        raise ClaimLost(f"{claim.operation} is no longer claimed by this run")
    return None if found.status == Status.PROCESSING else found


STEP = f"""
    {LOCKED}, seen AS (
        SELECT id FROM locked WHERE status = 'processing' AND {HOLDS_CLAIM}
    ), fenced AS (
        SELECT fence FROM operations_resourcefence
        WHERE resource = %(resource)s AND fence = %(fence)s FOR NO KEY UPDATE
    ), stepped AS (
        UPDATE operations_operation AS o SET step = %(step)s, version = o.version + 1
        FROM seen WHERE o.id = seen.id AND (%(fence)s::bigint IS NULL OR EXISTS (SELECT FROM fenced))
        RETURNING o.id
    )
    INSERT INTO operations_effect (operation_id, step, generation, kind, result, run)
    SELECT id, %(step)s, COALESCE((
        SELECT max(generation) FROM operations_effect
        WHERE operation_id = %(id)s AND step = %(step)s AND undone_at IS NOT NULL), 0) + 1,
        'local', %(result)s, %(run)s FROM stepped
    RETURNING step"""  # noqa: S608


def record_step(claim: Claim, *, step: str, result: Any) -> bool:
    """Mark a step as done, as the last statement of the transaction in which it wrote; not a move.

    False: the token, the lease or the fence says no, and all must be rolled back.
    """
    operation = claim.operation
    values = {
        "id": operation.id,
        "token": claim.token,
        "resource": operation.resource,
        "fence": claim.fence,
        "step": step,
        "result": Jsonb(result),
        "run": operation.runs,
    }
    return statements.row(STEP, values) is not None


def steps_done(id: UUID) -> dict[str, Any]:
    """Give the results of the steps that are recorded and not undone, by name."""
    done = Effect.objects.filter(operation_id=id, kind="local", undone_at=None)
    return dict(done.values_list("step", "result"))


class Standing(NamedTuple):
    """How a claim stands when the proof has refused it."""

    claimed: bool
    in_time: bool
    fence: int | None
    unresolved: bool  # an effect may have been sent, and nobody knows


STANDING = f"""
    SELECT o.status = 'processing' AND {HOLDS_CLAIM}, {IN_TIME}, f.fence, {UNRESOLVED}
    FROM operations_operation AS o LEFT JOIN operations_resourcefence AS f ON f.resource = o.resource
    WHERE o.id = %(id)s"""  # noqa: S608


def standing(claim: Claim, *, hard_limit: float) -> Standing | None:
    """Read why `succeed` said no."""
    values = {"id": claim.operation.id, "token": claim.token, "hard_limit": hard_limit}
    row = statements.row(STANDING, values)
    return None if row is None else Standing(*row)
