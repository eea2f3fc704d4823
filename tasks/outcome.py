"""The move that a run's outcome calls for."""

from operations import cancel, claims, lifecycle
from operations.certainty import certain
from operations.claims import Claim
from operations.crashpoints import crashpoint
from operations.dead_letters import Failure
from operations.dependencies import Verdict
from operations.models import TRANSIENT, Category, Operation, Reason
from tasks import breaker
from tasks.drain import Interrupted
from tasks.duties import Duties
from tasks.handle import Cancelled, ClaimLost, LockLost, OldNews
from tasks.retry import Again, GiveUp

Outcome = Operation | Failure | ClaimLost | LockLost | Interrupted | OldNews | Cancelled


def move(task: Duties, claim: Claim, outcome: Outcome) -> tuple[Operation | None, str]:
    """Make the move that the outcome calls for, under the claim's token; no operation: the claim was lost."""
    category = outcome.category if isinstance(outcome, Failure) else Category.NONE
    verdict = breaker.note(task, claim, outcome)
    try:
        moved = certain(lambda: _moved(task, claim, outcome, verdict), learn=lambda: claims.outcome(claim))
    except ClaimLost:
        return None, category
    return moved, category


def _moved(task: Duties, claim: Claim, outcome: Outcome, verdict: Verdict) -> Operation | None:
    match outcome:
        case Operation():
            return outcome
        case Failure():
            return _fail(task, claim, outcome, verdict)
        case LockLost() | Interrupted():
            return _hand_back(task, claim, str(outcome))
        case OldNews():
            return lifecycle.ignore(claim, reason=outcome.reason)
        case Cancelled():
            return cancel.stop(claim)
        case _:
            return None


def _fail(task: Duties, claim: Claim, failure: Failure, verdict: Verdict) -> Operation | None:
    if verdict.held and failure.category in TRANSIENT:  # nobody's fault: the attempt does not count
        pause = task.jittered(task.backoff_seconds(claim.operation))
        return lifecycle.put_back(claim, failure=failure, delay_seconds=pause)
    match task.decide(claim.operation, breaker.with_pause(failure, verdict)):
        case Again(delay_seconds):
            crashpoint("retry.before_move")
            return lifecycle.retry(claim, failure=failure, delay_seconds=delay_seconds)
        case GiveUp(reason):
            return task.bury(claim, reason, failure)


def _hand_back(task: Duties, claim: Claim, why: str) -> Operation | None:
    handed_back = lifecycle.hand_back(claim, error=why)
    if handed_back is not None or claim.operation.attempt < claim.operation.max_attempts:
        return handed_back
    often = Failure(category=Category.CONFLICT, message=f"interrupted too often, the last time because {why}")
    return task.bury(claim, Reason.ATTEMPTS_EXHAUSTED, often)
