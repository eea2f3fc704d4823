"""The story of one operation in order: request, key, moves, dead letters, acts of people."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from operations.models import (
    AuditEntry,
    Certainty,
    DeadLetter,
    Effect,
    EffectEvidence,
    IdempotencyRecord,
    Operation,
    Reason,
    Resolution,
    Status,
    Transition,
)

MOVES_SHOWN = 300  # the latest; more is the sign of a loop, and the list of transitions has them all


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that happened."""

    at: datetime
    title: str
    tone: str = "grey"
    who: str = ""
    arrow: str = ""  # the move as the lifecycle names it
    facts: tuple[tuple[str, str], ...] = ()
    text: str = ""  # an error or a reason, as written: never trusted
    letter_id: int | None = None
    gap: timedelta | None = None  # since the event before


def story(
    operation: Operation,
    *,
    key: IdempotencyRecord | None,
    moves: Iterable[Transition],
    letters: Iterable[DeadLetter],
    acts: Iterable[AuditEntry],
    effects: Iterable[Effect] = (),
    evidence: Iterable[EffectEvidence] = (),
) -> list[Event]:
    """Give every event in order, each with the time since the one before."""
    moves = list(moves)
    events = [
        *_of_request(operation, key),
        *(_of_move(move, operation) for move in moves if move.from_status),
        *(event for letter in letters for event in _of_letter(letter, moves)),
        *(_of_act(act) for act in acts),
        *(event for effect in effects for event in _of_effect(effect)),
        *(_of_evidence(each) for each in evidence),
    ]
    return list(_with_gaps(sorted(events, key=lambda event: event.at)))


def _of_request(operation: Operation, key: IdempotencyRecord | None) -> Iterator[Event]:
    yield Event(
        at=operation.created_at,
        title="Accepted",
        tone="blue",
        who=operation.owner.get_username(),
        arrow="→ queued",
        facts=(
            ("from", operation.source),
            ("request", operation.request_id),
            ("correlation", operation.correlation_id),
            ("key", operation.idempotency_key),
            ("request hash", key.request_hash[:19] + "…" if key else "key forgotten"),
        ),
    )


def _of_move(move: Transition, operation: Operation) -> Event:
    return Event(
        at=move.at,
        title=_title(move, operation.max_attempts),
        tone=MOVE_TONES.get(move.to_status, "grey"),
        who=move.actor,
        arrow=f"{move.from_status} → {move.to_status}",
        facts=(("reason", move.reason),) if move.reason else (),
        text=move.error,
    )


MOVE_TONES: dict[str, str] = {
    Status.QUEUED: "blue",
    Status.PROCESSING: "violet",
    Status.RETRY_SCHEDULED: "amber",
    Status.SUCCEEDED: "green",
    Status.FAILED_PERMANENT: "red",
}


def _title(move: Transition, max_attempts: int) -> str:
    if move.to_status == Status.PROCESSING:
        return f"Run {move.run} begins, attempt {move.attempt} of {max_attempts}"
    if move.to_status == Status.RETRY_SCHEDULED:
        return _title_of_wait(move)
    return TITLES.get(move.reason) or ENDS.get(move.to_status, move.to_status)


TITLES: dict[str, str] = {
    Reason.REPLAYED: "Sent round again",
    Reason.RECONCILED: "Sent round again: what became of it is known",
    Reason.INTERRUPTED: "Interrupted and handed back",
    Reason.DISCARDED: "Discarded",
    Reason.CANCELLED: "Cancelled",
}
ENDS: dict[str, str] = {
    Status.SUCCEEDED: "Succeeded",
    Status.FAILED_PERMANENT: "Failed for good",
    Status.IGNORED: "Deliberately not done",
}


def _title_of_wait(move: Transition) -> str:
    if move.from_status != Status.PROCESSING:
        return "Put off, no attempt spent"
    if move.reason == Reason.OUTCOME_UNKNOWN:
        return f"Run {move.run} does not know what became of what it sent; to be looked up"
    if move.reason == Reason.WORKER_LOST:
        return f"The worker of run {move.run} was lost"
    return f"Attempt {move.attempt} failed, to be tried again"


def _of_letter(letter: DeadLetter, moves: Iterable[Transition]) -> Iterator[Event]:
    """Tell of a dead letter right after the move it was written with, whose clock runs a little ahead."""
    deaths = (
        move.at for move in moves if move.to_status == Status.FAILED_PERMANENT and move.run == letter.runs
    )
    buried_at = max((letter.created_at, *deaths))
    yield Event(
        at=buried_at,
        title=f"Dead letter {letter.id}",
        tone="red",
        facts=(
            ("category", letter.category),
            ("class", letter.error_class),
            ("signature", letter.signature),
            ("dependency", letter.dependency),
            ("lock lost", "before that error" if letter.lock_lost else ""),
            ("attempts", str(letter.attempts)),
        ),
        letter_id=letter.id,
    )
    if letter.reported_at is not None:
        yield Event(at=max(letter.reported_at, buried_at), title=f"Dead letter {letter.id} reported")
    if letter.resolved_at is not None:
        yield Event(
            at=letter.resolved_at,
            title=f"Dead letter {letter.id} is {letter.resolution}",
            tone="green" if letter.resolution == Resolution.REPLAYED_OK else "grey",
            letter_id=letter.id,
        )


def _of_effect(effect: Effect) -> Iterator[Event]:
    """Tell what was sent, what became of it, and that it was undone; not what it says."""
    name = f"{effect.step}, generation {effect.generation}" if effect.generation > 1 else effect.step
    if effect.kind == "local":
        yield Event(at=effect.created_at, title=f"Step {name} is done", tone="green")
    if effect.first_sent_at is not None:
        facts = (("key", effect.key), ("run", str(effect.run)))
        yield Event(at=effect.first_sent_at, title=f"About to send: {name}", tone="violet", facts=facts)
    if effect.concluded_at is not None:
        yield Event(
            at=effect.concluded_at,
            title=f"{effect.get_certainty_display()}: {name}",
            tone=EFFECT_TONES.get(effect.certainty, "grey"),
            who=effect.concluded_by,
            text=str((effect.error or {}).get("message", "")),
        )
    if effect.undone_at is not None:
        yield Event(at=effect.undone_at, title=f"Undone: {name}")


EFFECT_TONES: dict[str, str] = {Certainty.CONFIRMED: "green", Certainty.REFUSED: "red"}


def _of_evidence(evidence: EffectEvidence) -> Event:
    return Event(
        at=evidence.at,
        title=f"Learned too late by run {evidence.run}: {evidence.step} is {evidence.certainty}",
        tone="amber",
    )


def _of_act(act: AuditEntry) -> Event:
    return Event(
        at=act.at,
        title=f"A person asked for it: {act.action}",
        tone="blue",
        who=act.actor,
        facts=(("audit", str(act.id)), ("request", act.request_id)),
        text=act.reason,
    )


def _with_gaps(events: Iterable[Event]) -> Iterator[Event]:
    before: datetime | None = None
    for event in events:
        yield replace(event, gap=None if before is None else event.at - before)
        before = event.at
