"""Send round again what waits for a person although the provider knows by now: a duty of the relay."""

import logging

from operations import replays
from operations.models import DeadLetter, Reason, Resolution

log = logging.getLogger(__name__)

BATCH = 20
ACTOR = "reconciler"
WHY = "the provider knows what became of it"


def send_round() -> int:
    """Let operations look up again whose effects a reconciler has seen decided."""
    waiting = DeadLetter.objects.filter(resolution=Resolution.WAITING, reason=Reason.OUTCOME_UNKNOWN)
    known = waiting.filter(operation__effects__found_at__isnull=False)
    return sum(_sent(id) for id in known.values_list("id", flat=True).distinct()[:BATCH])


def _sent(letter_id: int) -> bool:
    try:
        replays.replay(letter_id, actor=ACTOR, reason=WHY, because=Reason.RECONCILED)
    except replays.Refused as refused:  # a person was first, or the job is not in this code
        log.info("deadletter.not_reconciled", extra={"dead_letter": letter_id, "why": str(refused)})
        return False
    return True
