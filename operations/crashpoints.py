"""Named places where a test may kill, stop or fail the process. Without CRASHPOINTS they do nothing."""

import os
import signal
import time

from django.conf import settings

# Every one there is, in the order of an operation's life, and the process that passes it.
POINTS = {
    "accept.before_insert": "web",
    "accept.committed": "web",  # and not yet published or answered
    "run.received": "worker",  # a message, nothing looked at
    "lock.taken": "worker",
    "claim.committed": "worker",
    "step.before_commit": "worker",
    "step.committed": "worker",
    "effect.before_intent": "worker",
    "effect.intent_before_commit": "worker",
    "effect.intended": "worker",  # and not yet sent
    "effect.answered": "worker",  # and not yet written down
    "effect.concluded": "worker",
    "call.answered": "worker",
    "compensate.before_end": "worker",  # all is released, and nothing says so
    "follow_up.accepted": "worker",  # in the finishing transaction
    "finish.before_proof": "worker",
    "finish.before_commit": "worker",
    "retry.before_move": "worker",
    "bury.before_commit": "worker",
    "after_commit.begin": "worker",  # after a COMMIT of any move that owes something
    "after_commit.performed": "worker",  # and not yet forgotten
    "run.done": "worker",  # not yet acknowledged
    "report.sent": "worker",  # not yet marked
    "relay.taken_back": "relay",  # not yet published
    "relay.marked": "relay",  # as published, and not yet sent
    "relay.published": "relay",
    "replay.before_commit": "web",
}


class Crashed(Exception):
    """A test asked for a failure here."""


_seen: dict[str, int] = {}


def crashpoint(name: str) -> None:
    """Do what CRASHPOINTS says of `name`: kill, kill@n (the nth passage), raise, or pause=seconds.

    Raises:
        Crashed: the setting says `raise`.
    """
    if settings.CRASHPOINTS and POINTS[name] and name in settings.CRASHPOINTS:
        _obey(name, settings.CRASHPOINTS[name])


def _obey(name: str, action: str) -> None:
    verb, _, nth = action.partition("@")
    _seen[name] = _seen.get(name, 0) + 1
    if nth and _seen[name] != int(nth):
        return
    if verb == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if verb == "raise":
        raise Crashed(f"crash point {name!r} says raise")
    time.sleep(float(verb.removeprefix("pause=")))
