"""Ask for jobs that do not let go, and see what becomes of them."""

import uuid
from typing import NamedTuple

from tests.faults.lab import PROBES, Lab

STUBBORN = {
    "EXTRA_APPS": "tests.probes,tests.probes.stubborn",
    "WORKER_GROUP_PROBES": ",".join([*PROBES, "stubborn.long", "stubborn.short"]),
}


class Stay(NamedTuple):
    """An operation that runs."""

    id: str
    ref: str


def ask(lab: Lab, how: str, *, seconds: float, job: str = "long", **payload: str) -> Stay:
    """Ask for a job that stays `seconds` in the given way."""
    ref = uuid.uuid4().hex
    body = {"ref": ref, "seconds": seconds, "how": how, "thing": ref, **payload}
    return Stay(lab.new_user().ask(f"stubborn/{job}", body), ref)


def begin(lab: Lab, how: str, *, seconds: float, job: str = "long", **payload: str) -> Stay:
    """Ask for such a job, and wait until it has begun."""
    stay = ask(lab, how, seconds=seconds, job=job, **payload)
    lab.wait_effects(stay.ref)
    return stay
