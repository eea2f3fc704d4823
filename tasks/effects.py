"""How a run does something outside: intend, send, conclude; and look up before all else what is not known.

See Note [Written before it is sent] in operations/effects.py, and docs/effects.md for who writes a job.
"""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

from django.conf import settings
from django.db import connection, transaction

from operations import claims, effects, storable
from operations.certainty import certain
from operations.claims import Claim, ClaimLost
from operations.crashpoints import crashpoint
from operations.effects import Conclusion, Intent, Known
from operations.jobs import Rejected
from operations.models import TRANSIENT, Category, Certainty
from tasks.retry import CallFailed, Unknowable

LookUp = Callable[[str, Any], Any]  # (key, request) -> what was done; None: surely nothing
ALWAYS = timedelta(days=3_650)  # the window of what may be repeated for ever


class Ask(NamedTuple):
    """What a job wants done outside."""

    step: str
    send: Callable[[str, Any], Any]  # (key, request) -> the answer, as JSON
    request: Any
    look_up: LookUp | None
    repeats: bool  # without a look-up it is sent again, and does no harm if it is done twice
    resends: bool  # while the key lasts it is sent again rather than looked up, if an attempt is left
    window: timedelta
    timeout_seconds: float
    amount_minor: int | None


class Effects:
    """The effects of one run's operation: read once, then kept up as the run goes on."""

    def __init__(self, claim: Claim, *, check: Callable[[], None], refusal: Callable[[], Exception]) -> None:
        """Take the run's claim, its `check`, and how it says that a proof was refused."""
        self._claim, self._check, self._refusal = claim, check, refusal
        self._rows: list[Known] | None = None
        self._asked: dict[str, Any] = {}  # by step: what this run wants done

    @property
    def unresolved(self) -> bool:
        """Say whether an effect of the operation may have been sent, and nobody knows."""
        if self._rows is None:
            return self._claim.looks_up
        return bool(self._unknown())

    def key(self, step: str) -> str:
        """Give the key under which a step is sent, or would be now."""
        return self._key(step, self._next_generation(step, self._latest(step)))

    def perform(self, ask: Ask) -> Any:
        """Have it done, once: give the receipt if there is one, find out what is not known, or send."""
        if connection.in_atomic_block:
            raise ValueError(f"an effect belongs into the call, with no transaction open: {ask.step!r}")
        latest = self._latest(ask.step)
        self._refuse_ambiguous(ask, latest)
        generation = self._next_generation(ask.step, latest)
        if latest is None or generation > latest.generation:
            return self._send(ask, generation=generation)
        if latest.certainty == Certainty.MAYBE_SENT and not self._goes_again(ask, latest):
            latest = self._resolve(latest, ask.look_up)
        match latest.certainty:
            case Certainty.CONFIRMED:
                return latest.result
            case Certainty.REFUSED:
                raise self._as_refused(latest)
        return self._send(ask, generation=generation, before=latest)

    def _refuse_ambiguous(self, ask: Ask, latest: Known | None) -> None:
        """Refuse a name that is a step's, or that this run has used for something else."""
        if latest is not None and latest.kind != "outside":
            raise ValueError(f"{ask.step!r} is the name of a step of this operation, and no effect's")
        request = storable.cleaned(ask.request)
        if self._asked.setdefault(ask.step, request) != request:
            raise ValueError(f"{ask.step!r} names one request: each of several needs a name of its own")

    def outcome(self, step: str, look_up: LookUp | None) -> Any:
        """Tell what a step has done: its answer; None if nothing was, or it was undone. Sends nothing."""
        latest = self._latest(step)
        if latest is None or latest.undone:
            return None
        if latest.certainty == Certainty.MAYBE_SENT:
            latest = self._resolve(latest, look_up)
        return latest.result if latest.certainty == Certainty.CONFIRMED else None

    def _send(self, ask: Ask, *, generation: int, before: Known | None = None) -> Any:
        self._check()
        intent = Intent(
            step=ask.step,
            generation=generation,
            key=self._key(ask.step, generation),
            request=storable.cleaned(ask.request) if before is None else before.request,
            window=ALWAYS if ask.repeats and ask.look_up is None else ask.window,
            timeout_seconds=ask.timeout_seconds,
            amount_minor=ask.amount_minor,
            counts=before is not None and self._claim.looks_up,
        )
        began = time.monotonic()
        crashpoint("effect.before_intent")
        certain(lambda: self._intend(intent), learn=lambda: self._intended(intent))
        self._claim.operation.attempt += intent.counts
        self._claim.operation.sent_again = self._claim.operation.sent_again or intent.counts
        self._reread()
        crashpoint("effect.intended")
        self._refuse_late(intent, seconds=time.monotonic() - began)
        try:
            answer = _answer(ask.send(intent.key, intent.request))
        except (Rejected, CallFailed) as error:
            self._conclude_failed(intent.step, generation, error)
            raise
        crashpoint("effect.answered")
        self._conclude(Conclusion(intent.step, generation, Certainty.CONFIRMED, answer))
        crashpoint("effect.concluded")
        return answer

    def _refuse_late(self, intent: Intent, *, seconds: float) -> None:
        """Send nothing when so long has passed since the intent that a look-up might come before it."""
        if seconds > settings.LEASE_SECONDS - settings.HEARTBEAT_SECONDS:
            raise ClaimLost(f"too late to send {intent.step!r}: the lease may be over before the answer")
        if seconds > settings.ANSWER_MARGIN_SECONDS:
            late = CallFailed(
                Category.CONFLICT,
                f"{seconds:.1f} s passed before {intent.step!r} could be sent",
                certainty=str(Certainty.NOT_SENT),
            )
            self._conclude_failed(intent.step, intent.generation, late)
            raise late

    def _goes_again(self, ask: Ask, latest: Known) -> bool:
        """Say whether what may have been sent is simply sent again: under its key that is harmless."""
        operation = self._claim.operation
        is_left = operation.attempt < operation.max_attempts
        if ask.look_up is None:
            return ask.repeats and is_left
        return ask.resends and latest.in_window and is_left

    def _resolve(self, known: Known, look_up: LookUp | None) -> Known:
        """Find out what became of what may have been sent, or raise: not known yet, or never will be."""
        if look_up is None:
            raise Unknowable(
                f"{known.step!r} may have been done, and nobody can be asked: a person has to settle it"
            )
        try:
            found = look_up(known.key, known.request)
        except (Rejected, CallFailed) as error:
            if self._conclude_failed(known.step, known.generation, error, looking_up=True):
                return self._current(known)
            if known.in_window:
                raise
            raise Unknowable(f"what became of {known.step!r} can't be found out: {error}") from error
        if found is not None:
            done = _answer(found)
            self._conclude(Conclusion(known.step, known.generation, Certainty.CONFIRMED, done))
        else:
            self._conclude_not_found(known)
        return self._current(known)

    def _conclude_not_found(self, known: Known) -> None:
        if known.seconds_to_answer > 0:
            raise CallFailed(
                Category.CONFLICT,
                f"nothing is known of {known.step!r} yet",
                retry_after_seconds=known.seconds_to_answer,
            )
        if not known.in_window:
            raise Unknowable(
                f"nothing is known of {known.step!r}, and its key is forgotten: a person has to settle it"
            )
        why = {"category": Category.NONE, "message": "a look-up found nothing"}
        self._conclude(Conclusion(known.step, known.generation, Certainty.NOT_SENT, error=why))

    def _conclude_failed(
        self, step: str, generation: int, error: Rejected | CallFailed, *, looking_up: bool = False
    ) -> bool:
        """Write down what a failure proves; False: nothing. A look-up that was not sent proves nothing."""
        certainty = Certainty.REFUSED if isinstance(error, Rejected) else error.certainty
        if certainty == Certainty.MAYBE_SENT or (looking_up and certainty == Certainty.NOT_SENT):
            return False
        self._conclude(Conclusion(step, generation, certainty, error=_as_json(error)))
        return True

    def _conclude(self, conclusion: Conclusion) -> None:
        """Write down what is known now, or file it as evidence if the claim is another's.

        Raises:
            ClaimLost: it is.
            LockLost: the fence is.
        """
        if not certain(lambda: self._concluded(conclusion), learn=lambda: self._is_concluded(conclusion)):
            operation = self._claim.operation
            effects.file(operation.id, run=operation.runs, conclusion=conclusion)
            raise self._refusal()
        self._reread()

    def _concluded(self, conclusion: Conclusion) -> bool:
        with transaction.atomic():
            if effects.conclude(self._proof(), conclusion):
                return True
            transaction.set_rollback(True)
        return False

    def _is_concluded(self, conclusion: Conclusion) -> bool | None:
        now = self._find(conclusion.step, conclusion.generation)
        return True if now is not None and now.certainty == conclusion.certainty else None

    def _intend(self, intent: Intent) -> bool:
        with transaction.atomic():
            if not effects.intend(self._proof(), intent):
                raise self._no_intent(intent)
            crashpoint("effect.intent_before_commit")
        return True

    def _intended(self, intent: Intent) -> bool | None:
        now = self._find(intent.step, intent.generation)
        sent = now is not None and now.certainty == Certainty.MAYBE_SENT
        return True if sent and now is not None and now.run == self._claim.operation.runs else None

    def _no_intent(self, intent: Intent) -> Exception:
        standing = claims.standing(self._claim, hard_limit=0)
        if standing is None or not standing.claimed or standing.fence != self._claim.fence:
            return self._refusal()
        operation = self._claim.operation
        if intent.counts and operation.attempt >= operation.max_attempts:
            return CallFailed(Category.CONFLICT, f"no attempt is left to send {intent.step!r} again")
        others = [row.step for row in self._unknown() if row.step != intent.step]
        if others:
            return CallFailed(
                Category.CONFLICT, f"{intent.step!r} waits until it is known what became of {others[0]!r}"
            )
        return Unknowable(f"{intent.step!r} can't be sent again: its key is forgotten")

    def _next_generation(self, step: str, latest: Known | None) -> int:
        """Give the generation that counts now: another after a definite no that may change, or if undone."""
        if latest is None:
            return 1
        if latest.undone:
            return latest.generation + 1
        # A no stands while it is not known what became of something else.
        if latest.certainty != Certainty.REFUSED or self._unknown():
            return latest.generation
        again = latest.replays < self._claim.operation.replays or self._is_for_now(latest)
        return latest.generation + again

    def _is_for_now(self, refused: Known) -> bool:
        """Say whether a no may change, and was not said so often that it is taken for final."""
        tried = [row for row in self._known() if (row.step, row.replays) == (refused.step, refused.replays)]
        return _is_soft(refused) and len(tried) < effects.SOFT_GENERATIONS

    def _as_refused(self, known: Known) -> Exception:
        """Say again what the other side said; one that said no for now, and often enough, means it."""
        error = known.error or {}
        message = error.get("message", "")
        if "code" in error or (_is_soft(known) and not self._is_for_now(known)):
            return Rejected(error.get("code", "refused"), message)
        category = error.get("category", Category.INVALID_INPUT)
        return CallFailed(category, message, certainty=str(Certainty.REFUSED))

    def _key(self, step: str, generation: int) -> str:
        return f"{self._claim.operation.id}:{step}:g{generation}"

    def _known(self) -> list[Known]:
        if self._rows is None:
            self._rows = effects.known(self._claim.operation.id)
        return self._rows

    def _reread(self) -> None:
        self._rows = None
        self._known()

    def _unknown(self) -> list[Known]:
        return [row for row in self._known() if row.certainty == Certainty.MAYBE_SENT]

    def _latest(self, step: str) -> Known | None:
        return next((row for row in reversed(self._known()) if row.step == step), None)

    def _find(self, step: str, generation: int) -> Known | None:
        self._reread()
        return next((row for row in self._known() if (row.step, row.generation) == (step, generation)), None)

    def _current(self, known: Known) -> Known:
        return next(
            row for row in self._known() if (row.step, row.generation) == (known.step, known.generation)
        )

    def _proof(self) -> dict[str, Any]:
        operation = self._claim.operation
        return {
            "id": operation.id,
            "token": self._claim.token,
            "resource": operation.resource,
            "fence": self._claim.fence,
        }


def _is_soft(refused: Known) -> bool:
    return (refused.error or {}).get("category") in TRANSIENT


def _as_json(error: Rejected | CallFailed) -> dict[str, Any]:
    if isinstance(error, Rejected):
        return {"category": Category.BUSINESS_REJECTED, "code": error.code, "message": error.message}
    return {"category": error.category, "message": str(error)[:500]}


def _answer(said: Any) -> Any:
    """Give an answer as it is kept. One that says nothing is an answer, too: it was done."""
    return {} if said is None else storable.cleaned(said)
