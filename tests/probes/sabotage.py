"""Take one guard away, or break one thing.

A test of a guard is worth something only if it fails without the guard. Each function makes sure that it
changed something, so that it cannot go blind when the product is rewritten.
"""

import os
from functools import partial
from typing import Any

import httpx
from django.conf import settings
from django.db import transaction

from operations import accept, arrows, claims, jobs, lifecycle, statements
from operations.arrows import Arrow
from operations.effects import Conclusion, Known
from operations.models import Certainty
from tasks import after_commit
from tasks.after_commit import Owed
from tasks.effects import Effects

ON_CONFLICT = "ON CONFLICT (user_id, job_type, idempotency_key) DO UPDATE"
UNLESS_TAKEN = "AND NOT EXISTS (SELECT FROM taken)"
AFTER_THAT = "RETURNING operation_id"
TOKEN = "claim_token = %(token)s"
FENCE = "AND f.fence = %(fence)s"
COUNTED = "attempt = o.attempt + 1"
OWED = "make_interval(secs => %(grace)s), 0\n                FROM moved WHERE"
NOTHING = "(SELECT * FROM moved WHERE false) AS nothing"


def token_off() -> None:
    """Let a worker write without looking whether the claim is still its own."""
    guarded = [arrow for arrow in vars(lifecycle).values() if _asks_for_token(arrow)]
    assert len(guarded) >= 5, "succeed, ignore, retry, fail and hand back should ask for the token"
    for arrow in guarded:
        object.__setattr__(arrow, "where", arrow.where.replace(lifecycle.HOLDS_CLAIM, "true"))
        arrow.__dict__.pop("sql", None)
        assert "claim_token = " not in arrow.sql
    for name, condition in (("EXTEND", TOKEN), ("STANDING", claims.HOLDS_CLAIM)):
        statement = getattr(claims, name)
        assert condition in statement
        setattr(claims, name, statement.replace(condition, "true"))


def fence_off() -> None:
    """Let a run commit although another has claimed its resource since."""
    assert FENCE in arrows.FENCED
    arrows.FENCED = arrows.FENCED.replace(FENCE, "")


def attempts_off() -> None:
    """Do not count an attempt when it begins."""
    assert COUNTED in lifecycle.CLAIM
    lifecycle.CLAIM = lifecycle.CLAIM.replace(COUNTED, "attempt = o.attempt")


def after_commit_off() -> None:
    """Write down nothing of what a move owes: it is done after the commit by whoever lives then, or never."""
    for arrow in [value for value in vars(lifecycle).values() if isinstance(value, Arrow)]:
        assert OWED in arrow.sql
        arrow.__dict__["sql"] = arrow.sql.replace(OWED, OWED.replace("moved", NOTHING))
    after_commit.settle = partial(_settle_unwritten, after_commit.settle)


def unique_off() -> None:
    """Insert whatever is there, and do not name the constraint on keys, so that a test can drop it."""
    assert UNLESS_TAKEN in lifecycle.ACCEPT
    before, found, rest = lifecycle.ACCEPT.replace(UNLESS_TAKEN, "").partition(
        statements.squeezed(ON_CONFLICT)
    )
    _, also_found, after = rest.partition(AFTER_THAT)
    assert found
    assert also_found
    lifecycle.ACCEPT = f"{before} ON CONFLICT DO NOTHING {AFTER_THAT}{after}"


def broken_publish() -> None:
    """Let the callback that publishes raise, and register another behind it, which tells the effect stub."""
    assert callable(accept.publish)
    accept.publish = _raise
    accept.accept = partial(_accept_with_second_callback, accept.accept)


def visibility_unchecked() -> None:
    """Start although the broker delivers again before runs end, which the product refuses by itself."""
    timeout = settings.CELERY_BROKER_TRANSPORT_OPTIONS["visibility_timeout"]
    assert any(job.hard_limit > timeout for job in jobs.every()), "nothing would have been refused"
    settings.SILENCED_SYSTEM_CHECKS = [*settings.SILENCED_SYSTEM_CHECKS, "teguh.E005"]


def _asks_for_token(value: object) -> bool:
    return isinstance(value, Arrow) and lifecycle.HOLDS_CLAIM in value.where


def _raise(operation: Any) -> bool:
    raise RuntimeError("the callback that publishes was made to fail")


def _accept_with_second_callback(original: Any, request: accept.Request) -> accept.Accepted:
    with transaction.atomic():
        accepted = original(request)
        url = f"{os.environ['EFFECTS_URL']}/effects/second-callback-of-{accepted.operation.id}"
        transaction.on_commit(partial(httpx.post, url, trust_env=False))
    return accepted


def _settle_unwritten(original: Any, operation: Any, invalidate: Any = ()) -> None:
    original(operation, invalidate)
    after_commit.perform(Owed(0, invalidate, operation.resource, operation.claim_token))


def look_up_off() -> None:
    """Take what may have been sent for what was not, and so send it again."""

    def resolve(self: Effects, known: Known, look_up: object) -> Known:
        self._conclude(Conclusion(known.step, known.generation, Certainty.NOT_SENT))
        return self._current(known)

    Effects._resolve = resolve  # type: ignore[method-assign, assignment]
