"""Be certain of a transaction: repeat what the database gave up, learn what became of a lost answer."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from django.db import InterfaceError, OperationalError, connection
from psycopg.errors import DeadlockDetected, SerializationFailure

TRIES = 3
GIVEN_UP = (DeadlockDetected, SerializationFailure)  # rolled back whole, so it may be done again
LOST = ("08", "57P", "25P03")  # how a lost connection's SQLSTATE begins; a loss we notice ourselves has none
WORKER_PAUSES = (0.1, 0.3, 1.0, 3.0)  # seconds between tries to reconnect: a restart takes about two
WEB_PAUSES = (0.1,)  # a client waits

Result = TypeVar("Result")

# Note [When the answer is lost]
# A connection that ends during COMMIT leaves two worlds: it is committed, or it is not. Guessing either is
# wrong, so we reconnect and read the row. Its random token says whose work it carries: nobody else knows it.


def afresh(read: Callable[[], Result]) -> Result:
    """Do what may be done twice, over a new connection if ours has died since. Must not be in a transaction.

    A process whose connection is kept learns of a restart of the server by its first statement afterwards.

    Raises:
        django.db.OperationalError: the database is still away.
    """
    try:
        return read()
    except (OperationalError, InterfaceError):
        connection.close()
        return read()


def certain(
    transaction: Callable[[], Result],
    *,
    learn: Callable[[], Result | None],
    pauses: Sequence[float] = WORKER_PAUSES,
) -> Result:
    """Do `transaction` so that its outcome is known; must not be in one.

    Args:
        transaction: May run up to TRIES times, each time from the beginning.
        learn: Asked over a new connection when the old one was lost: gives the result if the transaction took
            effect, None if it did not and should be repeated, or raises.
        pauses: Seconds between tries to reconnect.

    Raises:
        django.db.OperationalError: the database did not come back, or gave it up TRIES times.
    """
    for tries_left in reversed(range(TRIES)):
        try:
            return transaction()
        except (OperationalError, InterfaceError) as error:
            if not tries_left:
                raise
            learned = _after(error, learn, pauses)
            if learned is not None:
                return learned
    raise AssertionError("the last try returns or raises")


def _after(error: Exception, learn: Callable[[], Result | None], pauses: Sequence[float]) -> Result | None:
    """Make ready to repeat, or give what the lost transaction did."""
    if isinstance(error.__cause__, GIVEN_UP):
        return None
    if not _lost(error):
        raise error
    _reconnect(pauses)
    return learn()


def _lost(error: Exception) -> bool:
    """Say whether the connection went. Only the error can tell: leaving atomic(), Django opened another."""
    state = getattr(error.__cause__, "sqlstate", None)
    return state is None or state.startswith(LOST)


def _reconnect(pauses: Sequence[float]) -> None:
    for pause in pauses:
        connection.close()
        try:
            connection.ensure_connection()
        except OperationalError:
            time.sleep(pause)
        else:
            return
    connection.close()
    connection.ensure_connection()
