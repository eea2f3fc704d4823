"""What a person orders for a job type, a queue or an owner: pause, pace, refuse. Each order is a hold."""

from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import transaction
from django.db.models.functions import Now

from operations import jobs
from operations.models import AuditEntry, Hold, HoldKind, JobControl

ORDERED = (HoldKind.PAUSE, HoldKind.RATE, HoldKind.REFUSE)
LONGEST_REASON = 300  # characters; it is shown beside every operation that waits
ORDERS = {
    "pause": {"paused": True},
    "resume": {"paused": False},
    "refuse": {"accepting": False},
    "accept": {"accepting": True},
}
NUMBERS = {"rate": "rate_per_minute", "backoff": "backoff_factor"}


class BadOrder(ValueError):
    """An order that cannot be carried out, and why."""


@dataclass(frozen=True)
class Scope:
    """Whom an order is about."""

    name: str  # as stored: "job_type:inventory.sync", "queue:inventory", "owner:7"
    job_types: list[str]  # empty: all
    owner_id: int | None


def read(name: str) -> Scope:
    """Understand "job_type:NAME", "queue:NAME" (a queue, or a group of them) or "owner:USERNAME".

    Raises:
        BadOrder: there is none of that name.
    """
    kind, _, value = name.strip().partition(":")
    if kind == "owner":
        return _owner(value)
    types = {"job_type": _job_type, "queue": _queue}.get(kind, lambda _: [])(value)
    if not types:
        raise BadOrder(
            f"{name!r} is none of job_type:NAME, queue:NAME and owner:USERNAME that are known here"
        )
    return Scope(f"{kind}:{value}", types, None)


def wanted(act: str, number: float | None) -> dict[str, Any]:
    """Give the columns that an order changes. A rate of nothing is no limit.

    Raises:
        BadOrder: it needs a number, and has none that makes sense.
    """
    if act in ORDERS:
        return dict(ORDERS[act])
    if number is None or number < 0 or (act == "backoff" and number == 0):
        raise BadOrder(f"{act} needs a number")
    if act == "rate" and 0 < number < 1:
        raise BadOrder(f"a rate is a whole number a minute, not {number:g}; to let nothing pass, pause it")
    return {NUMBERS[act]: number if act == "backoff" else int(number) or None}


@transaction.atomic
def change(scope: Scope, *, actor: str, reason: str, request_id: str = "", **wanted: Any) -> JobControl:
    """Order something, with its audit entry; takes effect with the commit. Opens a transaction.

    Args:
        scope: Whom it is about.
        actor: Who orders it.
        reason: Why; shown beside what waits.
        request_id: Of the request that carried the order.
        wanted: Columns of JobControl: paused, accepting, rate_per_minute (None: no limit), backoff_factor.

    Raises:
        BadOrder: there is no reason, or it is too long.
    """
    if not 0 < len(reason.strip()) <= LONGEST_REASON:
        raise BadOrder(
            f"say why, in 1 to {LONGEST_REASON} characters: it is kept, and shown beside what waits"
        )
    JobControl.objects.get_or_create(
        scope=scope.name, defaults={"job_types": scope.job_types, "owner_id": scope.owner_id}
    )
    control = JobControl.objects.select_for_update(no_key=True, of=("self",)).get(scope=scope.name)
    before = told(control)
    for column, value in {**wanted, "reason": reason.strip(), "actor": actor, "changed_at": Now()}.items():
        setattr(control, column, value)
    control.job_types = scope.job_types
    control.save()
    control.refresh_from_db()
    _hold(control)
    AuditEntry.objects.create(
        actor=actor,
        action="control",
        target=f"jobs:{scope.name}"[:200],
        reason=reason.strip(),
        before=before,
        after=told(control),
        request_id=request_id,
    )
    return control


def told(control: JobControl) -> dict[str, Any]:
    """Give an order as JSON: {scope, paused, accepting, rate_per_minute, backoff_factor, reason, actor}."""
    columns = ("scope", "paused", "accepting", "rate_per_minute", "backoff_factor", "reason", "actor")
    return {column: getattr(control, column) for column in columns}


def _hold(control: JobControl) -> None:
    """Let the open holds of a scope be those that are ordered. One that stays as it was goes on."""
    rate = control.rate_per_minute
    ordered = {
        HoldKind.PAUSE: 0.0 if control.paused else None,
        HoldKind.RATE: None if rate is None else rate / 60,
        HoldKind.REFUSE: None if control.accepting else 0.0,
    }
    for kind, per_second in ordered.items():
        mine = Hold.objects.filter(scope=control.scope, kind=kind, ended_at=None)
        if per_second is not None and mine.filter(per_second=per_second).exists():
            continue
        mine.update(ended_at=Now())
        if per_second is not None:
            Hold.objects.create(
                scope=control.scope,
                kind=kind,
                job_types=control.job_types,
                owner_id=control.owner_id,
                per_second=per_second,
                reason=control.reason,
                actor=control.actor,
            )


def _owner(username: str) -> Scope:
    person = get_user_model().objects.filter(username=username).first()
    if person is None:
        raise BadOrder(f"nobody is called {username!r}")
    return Scope(f"owner:{person.pk}", [], person.pk)


def _job_type(name: str) -> list[str]:
    return [each.name for each in jobs.every() if each.name == name]


def _queue(name: str) -> list[str]:
    queues = settings.WORKER_GROUPS.get(name, [name])
    return [each.name for each in jobs.every() if each.name in queues]
