"""What a person does about an effect whose outcome is unknown: find out, and say so.

Above SETTLE_ALONE_UP_TO_MINOR one person proposes, and another has to say the same. Everything is audited in
the transaction that does it.
"""

import logging
from typing import Any, NamedTuple

from django.conf import settings
from django.db import transaction
from django.db.models.functions import Now

from operations.models import AuditEntry, Certainty, Effect, Operation, Status

log = logging.getLogger(__name__)

OUTCOMES = (Certainty.CONFIRMED, Certainty.REFUSED)


class Refused(Exception):
    """The effect can't be settled so; the text says why."""


class Finding(NamedTuple):
    """What a person has found out, and where."""

    certainty: str  # "confirmed" or "refused"
    reference: str  # the provider's, e.g. a charge's id
    reason: str
    result: dict[str, Any] | None = None  # what the provider would have answered, for the steps behind it


def settle(effect_id: int, finding: Finding, *, actor: str, request_id: str = "") -> Effect:
    """Record what became of an effect, or propose it if it takes two. Opens a transaction.

    Its operation goes on from there when it is replayed.

    Raises:
        Refused: it is known already, its operation is being run, or something is missing.
    """
    _refuse_incomplete(finding)
    with transaction.atomic():
        effect = _locked(effect_id)
        if _takes_two(effect) and not _is_seconded(effect, finding, actor):
            _propose(effect, finding, actor)
            action = "settle-propose"
        else:
            _conclude(effect, finding, actor)
            action = "settle"
        _audit(effect, finding, action=action, actor=actor, request_id=request_id)
    log.warning(f"effect.{action}", extra={"effect": effect.pk, "actor": actor})  # noqa: G004 (one of two)
    return Effect.objects.get(pk=effect_id)


def unresolved() -> list[Effect]:
    """Give the effects of which nobody knows what became of them, the oldest first."""
    found = Effect.objects.filter(certainty=Certainty.MAYBE_SENT).select_related("operation")
    return list(found.defer("request", "result").order_by("sent_at"))


def _refuse_incomplete(finding: Finding) -> None:
    if finding.certainty not in OUTCOMES:
        raise Refused(f"an effect is confirmed or refused, not {finding.certainty!r}")
    if not finding.reason.strip():
        raise Refused("say why: the reason is kept in the audit")
    if not finding.reference.strip():
        raise Refused("give the provider's reference: where can what you say be looked up?")


def _locked(effect_id: int) -> Effect:
    """Find an effect, and let neither a run nor another person be at it meanwhile."""
    found = Effect.objects.filter(pk=effect_id).first()
    if found is None:
        raise Refused(f"there is no effect {effect_id}")
    operation = Operation.objects.select_for_update(no_key=True).get(pk=found.operation_id)
    effect = Effect.objects.select_for_update(no_key=True).get(pk=effect_id)
    if effect.certainty != Certainty.MAYBE_SENT:
        raise Refused(f"what became of effect {effect_id} is known: {effect.certainty}")
    if operation.status == Status.PROCESSING:
        raise Refused(f"operation {operation.pk} is being run, and looks it up itself; wait for that")
    return effect


def _takes_two(effect: Effect) -> bool:
    return effect.amount_minor is not None and effect.amount_minor > settings.SETTLE_ALONE_UP_TO_MINOR


def _is_seconded(effect: Effect, finding: Finding, actor: str) -> bool:
    """Say whether somebody else has proposed the very same.

    Raises:
        Refused: the same person again, or another has said something else.
    """
    proposed = effect.proposed
    if proposed is None:
        return False
    if proposed["by"] == actor:
        raise Refused(f"{actor} has proposed it: another person has to say the same")
    theirs = Finding(**{name: proposed[name] for name in Finding._fields})
    if theirs._replace(reason="") != finding._replace(reason=""):
        raise Refused(
            f"{proposed['by']} has found {theirs.certainty} ({theirs.reference}, {theirs.result}),"
            f" {actor} {finding.certainty} ({finding.reference}, {finding.result}): agree first"
        )
    return True


def _propose(effect: Effect, finding: Finding, actor: str) -> None:
    Effect.objects.filter(pk=effect.pk).update(proposed={"by": actor, **finding._asdict()})


def _conclude(effect: Effect, finding: Finding, actor: str) -> None:
    told = {"reference": finding.reference, **(finding.result or {})}
    refused = {"category": "business_rejected", "code": "settled", "message": finding.reason}
    confirmed = finding.certainty == Certainty.CONFIRMED
    Effect.objects.filter(pk=effect.pk, certainty=Certainty.MAYBE_SENT).update(
        certainty=finding.certainty,
        result=told if confirmed else None,
        error=None if confirmed else refused,
        concluded_at=Now(),
        concluded_by=actor[:150],
        proposed=None,
    )


def _audit(effect: Effect, finding: Finding, *, action: str, actor: str, request_id: str) -> None:
    AuditEntry.objects.create(
        actor=actor[:150],
        action=action,
        target=f"operation:{effect.operation_id}",
        reason=finding.reason,
        before={"effect": effect.pk, "step": effect.step, "certainty": effect.certainty},
        after={"certainty": finding.certainty, "reference": finding.reference},
        request_id=request_id,
    )
