"""Report a dead letter to those who are not looking: one Sentry event, one log line, however often asked."""

import hashlib
import logging
from typing import Any

import sentry_sdk
from django.db.models.functions import Now

from config.celery import app
from operations.certainty import afresh
from operations.crashpoints import crashpoint
from operations.models import DeadLetter
from operations.publish import REPORT

log = logging.getLogger(__name__)


@app.task(name=REPORT, acks_late=True, ignore_result=True)
def report(dead_letter_id: str) -> None:
    """Report it unless that has been done. Sent first and marked after, so a kill in between repeats it.

    A repetition is the same event to Sentry: its id is made from the dead letter's.
    """
    unreported = DeadLetter.objects.select_related("operation").filter(id=dead_letter_id, reported_at=None)
    letter = afresh(unreported.first)
    if letter is None:
        return
    if not letter.expected:
        sentry_sdk.capture_event(event_of(letter))
        sentry_sdk.flush(timeout=2)
    crashpoint("report.sent")
    if DeadLetter.objects.filter(id=letter.id, reported_at=None).update(reported_at=Now()):
        level = logging.INFO if letter.expected else logging.WARNING
        log.log(level, "dead_letter.reported", extra=_fields(letter))


def event_of(letter: DeadLetter) -> Any:
    """Give the Sentry event of a dead letter: its kind and its ids, nothing that a client sent."""
    name = f"dead letter {letter.id} of {letter.operation_id}"
    return {
        "event_id": hashlib.sha256(name.encode()).hexdigest()[:32],
        "level": "error",
        "logger": "dead_letter",
        "message": f"{letter.job_type}: {letter.reason} ({letter.error_class or letter.category})",
        "fingerprint": [letter.job_type, letter.signature],
        "tags": {
            "job_type": letter.job_type,
            "category": letter.category,
            "reason": letter.reason,
            "signature": letter.signature,
            "operation_id": str(letter.operation_id),
            "correlation_id": letter.correlation_id,
        },
    }


def _fields(letter: DeadLetter) -> dict[str, Any]:
    dead = {"reason": letter.reason, "category": letter.category, "signature": letter.signature}
    return {**letter.operation.log_fields(), **dead, "dead_letter_id": letter.id, "expected": letter.expected}
