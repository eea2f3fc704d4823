"""Payloads that were written for another version of their job than this code's."""

from typing import Any

from operations.jobs import Job

WRONG_SHAPE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class TooNew(Exception):
    """The payload is of a version that this code doesn't know yet: newer code does."""


class TooOld(Exception):
    """The payload is of a version that this code doesn't know any more."""


def upgraded(job: Job, payload: dict[str, Any], *, version: int) -> dict[str, Any]:
    """Give the payload as the job wants it today, one version after the other.

    Raises:
        TooNew: it is of a later version than the job's.
        TooOld: a step up is not declared, or cannot be taken with this payload.
    """
    if version > job.schema_version:
        raise TooNew(f"{job.name} is at version {job.schema_version} here, and the payload at {version}")
    for since in range(version, job.schema_version):
        payload = _step(job, payload, since)
    return payload


def _step(job: Job, payload: dict[str, Any], since: int) -> dict[str, Any]:
    if since not in job.upgrade:
        raise TooOld(f"{job.name} can't be asked for with a payload of version {since} any more")
    try:
        return dict(job.upgrade[since](dict(payload)))
    except WRONG_SHAPE as error:
        raise TooOld(
            f"{job.name}: its upgrade from version {since} failed with {type(error).__name__}"
        ) from error
