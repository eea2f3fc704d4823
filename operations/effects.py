"""What an operation does outside, written down before and after: the rows, and what is asked of them.

Each statement proves the claim it is made under, as a step does. What a job calls is `run.effect`; the order
of things is in tasks/effects.py.
"""

from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.conf import settings
from psycopg.types.json import Jsonb

from operations import statements
from operations.models import Certainty, EffectEvidence

# Note [Written before it is sent]
# The row that is committed before the first byte leaves says `maybe_sent`. Whoever finds it later cannot know
# how far that run came, so it asks the other side before it does anything else, and it never makes a new key:
# the key names operation, step and generation, and a generation ends with a definite no, or undone. Nor does
# it send anything else before it knows: who pays by card and, unanswered, from a wallet, pays twice.

# For rows of operations_operation AS o.
UNRESOLVED = """EXISTS (SELECT FROM operations_effect AS e
    WHERE e.operation_id = o.id AND e.certainty = 'maybe_sent')"""
# Something is done, or may be, that the operation's end would leave behind.
STANDS = "e.operation_id = o.id AND e.undone_at IS NULL AND e.certainty IN ('maybe_sent', 'confirmed')"
RESERVED = f"EXISTS (SELECT FROM operations_effect AS e WHERE {STANDS})"
PAST_RETURN = f"EXISTS (SELECT FROM operations_effect AS e WHERE {STANDS} AND e.step = %(no_return)s)"

SOFT_GENERATIONS = 3  # how often in all what was refused for now is tried, each time with a new key


class Known(NamedTuple):
    """An effect's row, as it stands."""

    step: str
    generation: int
    kind: str
    certainty: str
    result: Any
    error: dict[str, Any] | None
    key: str
    request: Any
    run: int
    replays: int
    undone: bool
    in_window: bool  # the provider still knows the key
    seconds_to_answer: float  # until a look-up's "not found" counts; 0 or less: it does

    @property
    def stands(self) -> bool:
        """Say whether something is done, or may be, that the operation's end would leave behind."""
        return not self.undone and self.certainty in (Certainty.MAYBE_SENT, Certainty.CONFIRMED)


KNOWN = """
    SELECT step, generation, kind, certainty, result, error, key, request, run, replays,
        undone_at IS NOT NULL, COALESCE(window_ends_at > clock_timestamp(), true),
        COALESCE(EXTRACT(epoch FROM answers_by - clock_timestamp()), 0)::float8
    FROM operations_effect WHERE operation_id = %(id)s ORDER BY id"""


def known(operation_id: UUID) -> list[Known]:
    """Give all steps and effects of an operation, the oldest first."""
    return [Known(*row) for row in statements.rows(KNOWN, {"id": operation_id})]


# Under the claim and the fence, as each write of a run's. The lease begins anew: a send needs time.
_PROOF = """
    WITH locked AS (
        SELECT * FROM operations_operation WHERE id = %(id)s FOR NO KEY UPDATE
    ), seen AS (
        SELECT id, attempt, max_attempts FROM locked
        WHERE status = 'processing' AND claim_token = %(token)s AND lease_expires_at > clock_timestamp()
    ), fenced AS (
        SELECT fence FROM operations_resourcefence
        WHERE resource = %(resource)s AND fence = %(fence)s FOR NO KEY UPDATE
    )"""
_FENCE_HOLDS = "(%(fence)s::bigint IS NULL OR EXISTS (SELECT FROM fenced))"
INTEND = f"""
    {_PROOF}, going AS (
        UPDATE operations_operation AS o
        SET step = %(step)s, version = o.version + 1, attempt = o.attempt + %(counts)s,
            lease_expires_at = clock_timestamp() + make_interval(secs => %(lease)s)
        FROM seen
        WHERE o.id = seen.id AND o.attempt + %(counts)s <= o.max_attempts AND {_FENCE_HOLDS}
            AND NOT EXISTS (
                SELECT FROM operations_effect AS other
                WHERE other.operation_id = o.id AND other.certainty = 'maybe_sent'
                    AND (other.step, other.generation) <> (%(step)s, %(generation)s))
        RETURNING o.id, o.runs, o.replays
    )
    INSERT INTO operations_effect AS e
        (operation_id, step, generation, kind, certainty, key, request, amount_minor, run, replays,
         first_sent_at, sent_at, answers_by, window_ends_at)
    SELECT id, %(step)s, %(generation)s, 'outside', 'maybe_sent', %(key)s, %(request)s, %(amount_minor)s,
        runs, replays, clock_timestamp(), clock_timestamp(),
        clock_timestamp() + make_interval(secs => %(patience)s), clock_timestamp() + %(window)s
    FROM going
    ON CONFLICT (operation_id, step, generation) DO UPDATE
        SET certainty = 'maybe_sent', sent_at = excluded.sent_at, answers_by = excluded.answers_by,
            run = excluded.run, error = NULL, concluded_at = NULL, concluded_by = '',
            -- What was surely not sent is sent for the first time, and its key is new to the other side.
            window_ends_at = CASE e.certainty
                WHEN 'not_sent' THEN excluded.window_ends_at ELSE e.window_ends_at END
        WHERE e.certainty = 'not_sent'
            OR e.certainty = 'maybe_sent' AND e.window_ends_at > clock_timestamp()
    RETURNING step, generation"""  # noqa: S608


class Intent(NamedTuple):
    """What is about to be sent."""

    step: str
    generation: int
    key: str
    request: Any
    window: timedelta
    timeout_seconds: float
    amount_minor: int | None = None
    counts: bool = False  # it spends an attempt: this run began as a look-up


def intend(proof: dict[str, Any], intent: Intent) -> bool:
    """Write down that an effect is about to be sent, as `maybe_sent`, and begin the lease anew.

    `proof` names the operation, the claim's token, its resource and its fence. False: the token, the lease or
    the fence says no, no attempt is left for it, the key's window is over, or another effect of the operation
    may have been sent and nobody knows. Then all must be rolled back.
    """
    values = {
        **proof,
        "step": intent.step,
        "generation": intent.generation,
        "key": intent.key,
        "request": Jsonb(intent.request),
        "amount_minor": intent.amount_minor,
        "window": intent.window,
        # It is sent within a margin from now or not at all, and may take a margin longer than it should.
        "patience": intent.timeout_seconds + 2 * settings.ANSWER_MARGIN_SECONDS,
        "counts": int(intent.counts),
        "lease": settings.LEASE_SECONDS,
    }
    return statements.row(INTEND, values) is not None


CONCLUDE = f"""
    {_PROOF}, told AS (
        UPDATE operations_operation AS o SET version = o.version + 1 FROM seen
        WHERE o.id = seen.id AND {_FENCE_HOLDS} RETURNING o.id, o.claimed_by
    )
    UPDATE operations_effect AS e
    SET certainty = %(certainty)s, result = %(result)s, error = %(error)s, concluded_at = clock_timestamp(),
        concluded_by = told.claimed_by
    FROM told WHERE e.operation_id = told.id AND e.step = %(step)s AND e.generation = %(generation)s
        AND e.certainty = 'maybe_sent'
    RETURNING e.step, e.generation"""  # noqa: S608


class Conclusion(NamedTuple):
    """What became of an effect."""

    step: str
    generation: int
    certainty: str
    result: Any = None
    error: dict[str, Any] | None = None


def conclude(proof: dict[str, Any], conclusion: Conclusion) -> bool:
    """Write down what became of an effect. False: the claim or the fence says no, or it is known already."""
    values = {
        **proof,
        "step": conclusion.step,
        "generation": conclusion.generation,
        "certainty": conclusion.certainty,
        "result": None if conclusion.result is None else Jsonb(conclusion.result),
        "error": None if conclusion.error is None else Jsonb(conclusion.error),
    }
    return statements.row(CONCLUDE, values) is not None


def file(operation_id: UUID, *, run: int, conclusion: Conclusion) -> None:
    """Keep what a run learned when its claim was another's already."""
    EffectEvidence.objects.create(
        operation_id=operation_id,
        step=conclusion.step,
        generation=conclusion.generation,
        run=run,
        certainty=conclusion.certainty,
        content=conclusion.result if conclusion.error is None else conclusion.error,
    )


def worst_certainty(operation_id: UUID) -> str:
    """Name what is known at worst of an operation's effects outside; empty: it has none."""
    found = {row[0] for row in statements.rows(CERTAINTIES, {"id": operation_id})}
    order = (Certainty.MAYBE_SENT, Certainty.CONFIRMED, Certainty.REFUSED, Certainty.NOT_SENT)
    return next((str(each) for each in order if each in found), "")


CERTAINTIES = """
    SELECT DISTINCT certainty FROM operations_effect
    WHERE operation_id = %(id)s AND kind = 'outside' AND undone_at IS NULL"""


# A look-up that waits is made due now; the relay publishes it.
LOOK_AGAIN = f"""
    UPDATE operations_operation AS o SET run_at = clock_timestamp(), published_at = NULL
    WHERE id = %(id)s AND status = 'retry_scheduled' AND run_at > clock_timestamp() AND {UNRESOLVED}
    RETURNING id"""  # noqa: S608


# Of one that waits for a person nobody asks any more: it is marked, and the relay sends it round again.
FOUND = """
    UPDATE operations_effect AS e SET found_at = clock_timestamp()
    FROM operations_operation AS o
    WHERE e.operation_id = %(id)s AND e.certainty = 'maybe_sent' AND o.id = e.operation_id
        AND o.status = 'failed_permanent'
    RETURNING e.operation_id"""


def look_again(operation_id: UUID, *, decided: bool = False) -> bool:
    """Have an operation look up its effects now, not later; no move. False: it does not wait for that.

    `decided` says that the other side has been seen to know: then one that is dead, because nobody could
    tell, is sent round again.
    """
    values = {"id": operation_id}
    if statements.row(LOOK_AGAIN, values) is not None:
        return True
    return decided and statements.row(FOUND, values) is not None
