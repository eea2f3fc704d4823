"""What a job's code holds while it runs, and the ways in which going on is in vain."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from json import dumps, loads
from typing import Any, NamedTuple

from django.db import connection, transaction
from rest_framework.utils.encoders import JSONEncoder

from operations import claims, effects, storable
from operations.certainty import certain
from operations.claims import Claim, ClaimLost
from operations.crashpoints import crashpoint
from operations.models import Reason
from tasks import drain
from tasks.drain import Interrupted
from tasks.effects import Ask, Effects, LookUp
from tasks.heartbeat import Heartbeat

LONGEST_STEP = 50  # characters of a step's name: what its marker and Operation.step hold


class LockLost(Exception):
    """Somebody else may work on the resource. The run is given back."""


class OldNews(Exception):
    """What this run brings is older than what is there, or another operation has brought it."""

    def __init__(self, reason: Reason) -> None:
        """Take STALE_VERSION or DUPLICATE."""
        super().__init__(reason)
        self.reason = reason


class Cancelled(Exception):
    """Its owner has asked for the end of the operation, and nothing is recorded that would be left behind."""


class FollowUp(NamedTuple):
    """An operation to be accepted with the finish of this one."""

    job_type: str
    payload: dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One run of an operation."""

    claim: Claim
    heartbeat: Heartbeat
    began: float  # time.monotonic(), seconds
    no_return: str = ""  # the effect after which the owner's cancel comes too late
    compensates: bool = False  # what is recorded can be released
    _steps: dict[str, Any] = field(default_factory=dict)
    _follow_ups: dict[str, FollowUp] = field(default_factory=dict)

    @cached_property
    def effects(self) -> Effects:
        return Effects(self.claim, check=self.check, refusal=self._refusal)

    @property
    def operation_id(self) -> str:
        return str(self.claim.operation.id)

    @property
    def number(self) -> int:
        """The run's number within its operation, from 1; it only ever grows."""
        return self.claim.operation.runs

    @property
    def is_cancelled(self) -> bool:
        """Say whether what is released is released because the owner has cancelled it."""
        return self.claim.operation.compensating_for == "ignored cancelled"

    def key(self, step: str) -> str:
        """Give the idempotency key for an outside step: the same in every run of this operation.

        Another only after the other side has said no for good, or what it did was undone.
        """
        return self.effects.key(step)

    def check(self) -> None:
        """Stop here if going on is in vain or the worker ends; a long job calls it between its parts.

        Raises:
            ClaimLost: the lease could not be renewed.
            LockLost: the lock could not.
            Interrupted: the worker was told to end; another goes on.
            Cancelled: the operation's owner wants it no more, and nothing is recorded or all can be released.
        """
        self.check_claim()
        if self.heartbeat.cancel_requested and self._can_be_cancelled():
            raise Cancelled(f"{self.claim.operation} is cancelled by its owner")
        if drain.begun():
            raise Interrupted("the worker ends")

    def check_claim(self) -> None:
        """Stop here if the claim or the lock is lost."""
        if self.heartbeat.claim_lost:
            raise ClaimLost(f"{self.claim.operation} is no longer claimed by this run")
        if self.heartbeat.lock_lost:
            raise LockLost(f"the lock of {self.claim.operation.resource} was lost")

    def step(self, name: str, do: Callable[..., Any], /, **arguments: Any) -> Any:
        """Do a local step once in an operation's life, in its own transaction; give its result.

        A later run finds it recorded and goes on behind it. `do` writes to our database and to nothing else;
        a deadlock repeats it. Its result is given as recorded: as JSON, cleaned of what can't be stored.

        Raises:
            ClaimLost: this run may write no more; what `do` wrote is rolled back.
            LockLost: another operation has claimed the resource; the same.
            Interrupted: the worker was told to end.
            Cancelled: the operation's owner wants it no more, and this would be its first step.
            ValueError: a later run could not find a step of that name.
        """
        if not 0 < len(name) <= LONGEST_STEP or connection.in_atomic_block:
            raise ValueError(
                f"run.step belongs into the call, with a name of 1 to {LONGEST_STEP} characters: {name!r}"
            )
        if not self._steps:
            self._steps.update({"": None, **claims.steps_done(self.claim.operation.id)})
        if name not in self._steps:
            self.check()
            done = certain(lambda: self._do(name, do, arguments), learn=lambda: self._recorded(name))
            self._steps[name] = done[0]
            crashpoint("step.committed")
        return self._steps[name]

    def effect(
        self,
        step: str,
        send: Callable[[str, Any], Any],
        /,
        *,
        request: Any,
        look_up: LookUp | None = None,
        without_look_up: str = "park",
        resend: bool = False,
        window: timedelta = timedelta(hours=23),
        timeout: float = 15.0,
        amount_minor: int | None = None,
    ) -> Any:
        """Do something outside once in an operation's life; give the answer to it, now and in later runs.

        Written down before it is sent, as something that may have been done. A run that finds it so asks
        `look_up` before anything else, and spends no attempt on that.

        Args:
            step: Its name; with the operation and the generation it is the key.
            send: send(key, request) -> answer as JSON; None is kept as {}. Raises Rejected for a definite no;
                CallFailed otherwise, with the `certainty` that the failure leaves.
            request: JSON; what was sent first is what is sent again.
            look_up: look_up(key, request) -> the answer that `send` would have had; None if it was surely
                not done. What it raises is taken as from `send`, but that it failed proves nothing.
            without_look_up: "park" (a person settles what is unknown) or "repeat" (twice harms nobody).
            resend: While the other side knows the key, send again before looking up: where doing it moves
                nothing, and a look-up is dear. That counts as an attempt.
            window: For how long after the first send the other side knows the key.
            timeout: Seconds after which `send` has given up by itself.
            amount_minor: What is at stake, where it is money: large ones two persons settle.

        Raises:
            ValueError: a name or policy that can't be, a name that means something else, or a transaction is
                open.
        """
        if not 0 < len(step) <= LONGEST_STEP or without_look_up not in ("park", "repeat"):
            raise ValueError(f"an effect has a name of 1 to {LONGEST_STEP} characters and a policy: {step!r}")
        return self.effects.perform(
            Ask(
                step=step,
                send=send,
                request=request,
                look_up=look_up,
                repeats=without_look_up == "repeat",
                resends=resend,
                window=window,
                timeout_seconds=timeout,
                amount_minor=amount_minor,
            )
        )

    def outcome(self, step: str, *, look_up: LookUp | None = None) -> Any:
        """Tell what an effect has done, for who has to release it: its answer, or None if nothing was.

        Looks up what is not known, and sends nothing.
        """
        return self.effects.outcome(step, look_up)

    def follow_up(self, job_type: str, payload: dict[str, Any]) -> None:
        """Have another operation accepted when this one succeeds, with it; the same payload once.

        Ids, times and decimals are sent as text, as a client would send them.
        """
        text = dumps(payload, sort_keys=True, cls=JSONEncoder, allow_nan=False)
        self._follow_ups[f"{job_type} {text}"] = FollowUp(job_type, loads(text))

    def follow_ups(self) -> list[FollowUp]:
        return list(self._follow_ups.values())

    def for_a_handler(self) -> "Run":
        """Give this run to a handler that may be repeated: what it asks for in one try is not in the next."""
        return replace(self, _follow_ups=dict(self._follow_ups))

    def _can_be_cancelled(self) -> bool:
        operation = self.claim.operation
        if operation.compensating_for or self.effects.unresolved:
            return False
        stands = [row for row in effects.known(operation.id) if row.stands]
        return not stands or (self.compensates and all(row.step != self.no_return for row in stands))

    def _do(self, name: str, do: Callable[..., Any], arguments: dict[str, Any]) -> tuple[Any]:
        with transaction.atomic():
            result = storable.cleaned(do(**arguments))
            crashpoint("step.before_commit")
            if not claims.record_step(self.claim, step=name, result=result):
                raise self._refusal()
        return (result,)

    def _refusal(self) -> Exception:
        """Say why a step was refused. Raised inside its transaction, so what it wrote is rolled back."""
        standing = claims.standing(self.claim, hard_limit=0)
        if standing is not None and standing.claimed:
            return LockLost(f"{self.claim.operation.resource} has been claimed by another operation")
        return ClaimLost(f"{self.claim.operation} is no longer claimed by this run")

    def _recorded(self, name: str) -> tuple[Any] | None:
        done = claims.steps_done(self.claim.operation.id)
        return (done[name],) if name in done else None
