"""python manage.py relay: do the relay's duties until told to stop."""

import logging
import random
import signal
import threading
import time
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import DatabaseError, InterfaceError, OperationalError, connections
from psycopg.errors import LockNotAvailable, QueryCanceled

from operations.publish import BrokerAway
from tasks import node, releases
from tasks.relay import DUTIES

log = logging.getLogger(__name__)

LONGEST_PAUSE_SECONDS = 30.0  # between tries while the database is away
TOOK_TOO_LONG = (QueryCanceled, LockNotAvailable)
# A round begins up to a quarter of the period early. Redis gives a message to the worker that has asked for
# longest, and each asks anew every second: published in that rhythm, one message goes to one worker for ever,
# and it may be the one whose code is too old for it.
EARLIEST = 0.75


class Command(BaseCommand):
    """Publish what is due, take back what lost workers held, repeat what finished runs owe."""

    help = __doc__

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--once",
            action="store_true",
            help="do each duty once and say how many rows it touched;"
            " takes nothing back, for it has watched no lease",
        )

    def handle(self, *, once: bool, **options: Any) -> None:
        if once:
            for duty in DUTIES:
                self.stdout.write(f"{duty.__name__}: {duty()}")
            return
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        log.info("relay.started", extra={"period_seconds": settings.RELAY_PERIOD_SECONDS})
        _go_round(stop)
        node.leave("relay")
        log.info("relay.stopped")


def _go_round(stop: threading.Event) -> None:
    """Do all duties once a period; a full batch means there is more, so go on at once."""
    failures = 0
    while not stop.is_set():
        began = time.monotonic()
        try:
            more = max(_all_duties()) >= settings.RELAY_BATCH
            failures = 0
        except (DatabaseError, InterfaceError) as error:
            connections.close_all()
            failures, more = failures + 1, False
            log.warning("relay.database_away", extra={"error": type(error).__name__})
        pause = min(settings.RELAY_PERIOD_SECONDS * 2**failures, LONGEST_PAUSE_SECONDS)
        pause *= random.uniform(EARLIEST, 1)  # noqa: S311 (no secret)
        _rest(stop, 0 if more else max(0.0, pause - (time.monotonic() - began)), dole=not failures)


def _rest(stop: threading.Event, seconds: float, *, dole: bool) -> None:
    """Wait for the next round. What a rate lets through is doled out meanwhile, in smaller portions."""
    end = time.monotonic() + seconds
    try:
        while dole and releases.going_on() and (left := end - time.monotonic()) > 0:
            stop.wait(min(left, releases.TICK_SECONDS))
            _one_duty(releases.release)
    except (DatabaseError, InterfaceError) as error:
        connections.close_all()
        log.warning("relay.database_away", extra={"error": type(error).__name__})
    stop.wait(max(0.0, end - time.monotonic()))


def _all_duties() -> list[int]:
    node.report("relay")
    return [_one_duty(duty) for duty in DUTIES]


def _one_duty(duty: Any) -> int:
    try:
        return int(duty())
    except BrokerAway as error:
        log.warning("relay.broker_away", extra={"error": str(error)})
        return 0
    except OperationalError as error:
        if not isinstance(error.__cause__, TOOK_TOO_LONG):
            raise
        fields = {"duty": duty.__name__, "error": type(error.__cause__).__name__}
        log.warning("relay.duty_took_too_long", extra=fields)  # the others have their turn
        return 0
