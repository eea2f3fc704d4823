"""The move that a run's outcome calls for."""

from operations import cancel, claims, compensation, lifecycle
from operations.certainty import certain
from operations.claims import Claim
from operations.compensation import Ending
from operations.crashpoints import crashpoint
from operations.dead_letters import Failure
from operations.dependencies import Verdict
from operations.jobs import Duplicate, NotYet
from operations.models import TRANSIENT, Category, Operation, Reason, Status
from tasks import breaker, retry
from tasks.drain import Interrupted
from tasks.duties import Duties
from tasks.handle import Cancelled, ClaimLost, LockLost, OldNews
from tasks.retry import Again, GiveUp

Vain = ClaimLost | LockLost | Interrupted | OldNews | Cancelled | Duplicate | NotYet
Outcome = Operation | Failure | Vain


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
        case ClaimLost():
            return None
        case _:
            return _moved_in_vain(task, claim, outcome)


def _moved_in_vain(
    task: Duties, claim: Claim, why: NotYet | OldNews | Duplicate | Cancelled
) -> Operation | None:
    match why:
        case NotYet():
            waits = Failure(category=Category.CONFLICT, message=str(why))
            pause = task.jittered(why.seconds)
            moved = lifecycle.put_back(claim, failure=waits, delay_seconds=pause, reason=Reason.CONFLICT)
            return moved or _look_again(task, claim, waits)
        case Cancelled():
            turned = compensation.turn_back(claim, task.job, compensation.CANCELLED, compensation.NOT_WANTED)
            return turned or cancel.stop(claim)
        case _:
            return _ignore(task, claim, why)


def _ignore(task: Duties, claim: Claim, why: OldNews | Duplicate) -> Operation | None:
    """End a run that has nothing to do; what it has reserved before it saw that is released first.

    What can't be released, because the job is past its return or is releasing, is a person's.
    """
    reason = why.reason if isinstance(why, OldNews) else Reason.DUPLICATE
    ending, failure = Ending(Status.IGNORED, reason), Failure(category=Category.CONFLICT, message=str(why))
    result = {"duplicate_of": why.of} if isinstance(why, Duplicate) else None
    compensates = task.job.compensate is not None
    return (
        compensation.turn_back(claim, task.job, ending, failure)
        or lifecycle.ignore(claim, reason=reason, result=result, compensates=compensates)
        or _again(task, claim, failure)
        or task.bury(claim, Reason.BUG, failure)
    )


def _fail(task: Duties, claim: Claim, failure: Failure, verdict: Verdict) -> Operation | None:
    """Look up, try again or end: the row says whether an effect is unknown, the run only where to begin."""
    if failure.parked:
        return task.bury(claim, Reason.OUTCOME_UNKNOWN, failure)
    if failure.unresolved:
        crashpoint("retry.before_move")
        again = _again(task, claim, failure)
        if again is not None:
            return again
    return _decided(task, claim, failure, verdict) or _look_again(task, claim, failure)


def _decided(task: Duties, claim: Claim, failure: Failure, verdict: Verdict) -> Operation | None:
    """Make the move of a run whose effects are all known; None: one is not, or the claim is lost."""
    if verdict.held and failure.category in TRANSIENT:  # nobody's fault: the attempt does not count
        pause = task.jittered(task.backoff_seconds(claim.operation))
        return lifecycle.put_back(claim, failure=failure, delay_seconds=pause)
    match task.decide(claim.operation, breaker.with_pause(failure, verdict)):
        case Again(delay_seconds):
            crashpoint("retry.before_move")
            return lifecycle.retry(claim, failure=failure, delay_seconds=delay_seconds)
        case GiveUp(reason):
            return task.bury(claim, reason, failure)


def _look_again(task: Duties, claim: Claim, failure: Failure) -> Operation | None:
    """Have what may have been done looked up, for as long as that can help; then it is a person's."""
    return _again(task, claim, failure) or task.bury(claim, Reason.OUTCOME_UNKNOWN, failure)


def _again(task: Duties, claim: Claim, failure: Failure) -> Operation | None:
    pause = _look_up_pause(task, claim, failure)
    return lifecycle.look_again(claim, failure=failure, delay_seconds=pause)


def _look_up_pause(task: Duties, claim: Claim, failure: Failure) -> float:
    """Give the seconds until the next look-up: our schedule's, or what was asked for if that is more."""
    asked = min(failure.retry_after_seconds or 0.0, retry.LONGEST_RETRY_AFTER_SECONDS)
    return max(task.jittered(retry.look_up_pause(claim.operation.lookups)), asked)


def _hand_back(task: Duties, claim: Claim, why: str) -> Operation | None:
    handed_back = lifecycle.hand_back(claim, error=why)
    if handed_back is not None or claim.looks_up or claim.operation.attempt < claim.operation.max_attempts:
        return handed_back
    often = Failure(category=Category.CONFLICT, message=f"interrupted too often, the last time because {why}")
    return task.bury(claim, Reason.ATTEMPTS_EXHAUSTED, often)
