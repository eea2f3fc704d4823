"""Compare us with the gateway: what is undecided, what was made in a window, and the sum of it all.

Nothing is adopted in silence: a difference is a Drift, which people see, or an operation that looks again.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import stripe
from django.db.models.functions import Now
from django.utils import timezone
from prometheus_client import Counter as Metric

from operations import effects
from payments import drifts, gateway, ledger
from payments.drifts import UNDECIDED
from payments.models import Drift, DriftKind, Payment, PaymentKind, Reconciliation

OVERLAP = timedelta(hours=1)  # what a sweep looks at again: intents are not listed the moment they are made
FIRST_SWEEP = timedelta(days=2)
PATIENCE = timedelta(minutes=1)  # in which an operation may decide by itself
FORGOTTEN = timedelta(days=1)  # after which the gateway knows no key, and nothing more will come

CHECKED = Metric("ops_reconcile_checked", "Payments compared with the gateway.", ["dependency", "result"])


def fast(*, now: datetime | None = None) -> dict[str, int]:
    """Let every operation that does not know look again; find those that nobody will ever tell."""
    now = timezone.now() if now is None else now
    waiting = Payment.objects.filter(
        kind=PaymentKind.CHARGE, status__in=UNDECIDED, created_at__lt=now - PATIENCE
    )
    counts: Counter[str] = Counter()
    for payment in waiting.select_related("order"):
        counts["checked"] += 1
        counts["woken"] += effects.look_again(payment.operation_id)
        if not payment.gateway_id and payment.created_at < now - FORGOTTEN:  # nor has an event named it
            nothing = {"id": "", "status": "no object", "amount_minor": 0, "currency": ""}
            drifts.open_one(DriftKind.NO_OBJECT, payment=payment, truth=nothing)
            counts["opened"] += 1
    return _done("fast", counts)


def sweep(*, now: datetime | None = None) -> dict[str, int]:
    """Compare every intent made since the last sweep, or a while before it, and all that differed then."""
    now = timezone.now() if now is None else now
    last = Reconciliation.objects.filter(name="sweep").first()
    since = now - FIRST_SWEEP if last is None or last.swept_until is None else last.swept_until - OVERLAP
    counts: Counter[str] = Counter()
    for truth in _listed(since, now):
        counts["checked"] += 1
        counts[compare(truth)] += 1
    for drift in Drift.objects.filter(closed_at=None).exclude(gateway_id=""):
        counts["rechecked"] += 1
        counts[compare(_with_refunds(gateway.get_intent(drift.gateway_id)))] += 1
    return _done("sweep", counts, swept_until=now)


def balance() -> dict[str, Any]:
    """Compare the sums: what the gateway took and gave back, by our payments' intents, with the ledger."""
    theirs: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for payment in Payment.objects.filter(kind=PaymentKind.CHARGE).exclude(gateway_id="").iterator():
        truth = _with_refunds(gateway.get_intent(payment.gateway_id))
        counts["checked"] += 1
        if truth["status"] == "succeeded":
            theirs[truth["currency"]] += truth["amount_minor"] - truth["refunded_minor"]
    ours = ledger.balance()
    differs = {
        currency: theirs[currency] - ours.get(currency, 0)
        for currency in {*theirs, *ours}
        if theirs[currency] != ours.get(currency, 0)
    }
    counts["differing_currencies"] = len(differs)
    return {**_done("balance", counts), "differs_minor": differs}


def compare(truth: dict[str, Any]) -> str:
    """Compare one intent with what we know of it: "match", "open" (a difference is on record) or "woken"."""
    payment = Payment.objects.select_related("order").filter(gateway_id=truth["id"]).first()
    if payment is None:
        return _count(_compare_stranger(truth))
    kind = drifts.between(payment, truth)
    if kind is None:
        drifts.close(truth["id"])
        return _count("match")
    if kind == DriftKind.UNDECIDED and effects.look_again(payment.operation_id, decided=True):
        return _count("woken")
    drifts.open_one(kind, payment=payment, truth=truth)
    return _count("open")


def _compare_stranger(truth: dict[str, Any]) -> str:
    """Judge an intent that no payment of ours names: a charge of nobody's is somebody's money."""
    if truth["status"] not in ("succeeded", "requires_capture"):
        return "match"
    drifts.open_one(DriftKind.ORPHAN, payment=None, truth=truth)
    return "open"


def _listed(since: datetime, until: datetime) -> Iterator[dict[str, Any]]:
    listed: Iterable[stripe.PaymentIntent] = gateway.list_intents(
        int(since.timestamp()), int(until.timestamp()) + 1
    )
    for intent in listed:
        yield _with_refunds(gateway.get_intent(intent.id))


def _with_refunds(truth: dict[str, Any]) -> dict[str, Any]:
    return {**truth, "refunded_minor": gateway.refunded_minor(truth["id"]) if _is_taken(truth) else 0}


def _is_taken(truth: dict[str, Any]) -> bool:
    return bool(truth["status"] == "succeeded")


def _count(result: str) -> str:
    CHECKED.labels("payments-gateway", result).inc()
    return result


def _done(name: str, counts: Counter[str], **more: Any) -> dict[str, int]:
    told = dict(counts)
    Reconciliation.objects.update_or_create(
        name=name, defaults={"succeeded_at": Now(), "counts": told, **more}
    )
    return told


def ages() -> dict[str, float]:
    """Give the seconds since each comparison succeeded last."""
    now = time.time()
    done = Reconciliation.objects.values_list("name", "succeeded_at")
    return {name: round(now - at.astimezone(UTC).timestamp(), 1) for name, at in done}
