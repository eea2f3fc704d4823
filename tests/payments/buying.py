"""Run purchases as workers would, one run after the other."""

from operations.models import Effect
from tests.factories import earlier, work

PRICE = 1_200  # of a lamp


def go_on(operation, *, runs=12):
    """Do what workers do, each time it is due, until it is over."""
    for _ in range(runs):
        earlier(operation, "run_at")
        Effect.objects.filter(operation=operation, kind="outside").update(answers_by=operation.created_at)
        operation = work(operation)
        if operation.is_final:
            break
    return operation


def once(operation):
    return go_on(operation, runs=1)


def ends(operation):
    return operation.status, operation.reason
