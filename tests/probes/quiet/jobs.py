"""A job that calls nobody and writes nothing: what it costs is the way to it."""

from typing import Any

from operations.jobs import Backoff, Payload, job


class Nothing(Payload):
    """Nothing is asked."""


@job(
    "probe.nothing", route="probe/nothing", payload=Nothing, retry=Backoff(1, 2), soft_limit=10, hard_limit=15
)
def done(run: Any, answer: Any, **payload: Any) -> None:
    """Do nothing."""
