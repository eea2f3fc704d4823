"""What is refused at start-up: settings and contracts under which a promise could not be kept."""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from celery.signals import worker_init
from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, register
from django.core.management.base import BaseCommand, SystemCheckError

from operations import jobs


@register("teguh")
def check_times(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> Iterable[CheckMessage]:
    """Hold leases, beats and locks to each other."""
    beats, lease = settings.HEARTBEAT_SECONDS, settings.LEASE_SECONDS
    ttl, poll = settings.LOCK_TTL_SECONDS, settings.LOCK_POLL_SECONDS
    if not 0 < beats * 3 <= lease:
        yield _error(
            1, f"a lease of {lease} s is shorter than three beats of {beats} s", "lower HEARTBEAT_SECONDS"
        )
    if not beats < ttl <= lease:
        yield _error(
            2,
            f"a lock of {ttl} s must outlive a beat ({beats} s), not the lease ({lease} s)",
            "LOCK_TTL_SECONDS",
        )
    if not 0 < poll <= lease:
        yield _error(
            3,
            f"a waiter that looks every {poll} s must do so within a lease ({lease} s)",
            "LOCK_POLL_SECONDS",
        )


@register("teguh")
def check_jobs(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> Iterable[CheckMessage]:
    """Hold every job to the broker's patience, and to a queue that a worker serves."""
    served = {queue for queues in settings.WORKER_GROUPS.values() for queue in queues}
    patience = settings.BROKER_PATIENCE_SECONDS
    for job in jobs.every():
        if job.name not in served:
            yield _error(
                4,
                f"no worker group serves the queue of {job.name!r}",
                "add it to WORKER_GROUPS in settings.py",
            )
        if job.hard_limit >= patience:
            yield _error(
                5,
                f"{job.name}: the broker redelivers after {patience} s, the hard limit is {job.hard_limit} s",
                f"raise {_patience_setting()}, or cut the job into steps",
            )


@register("teguh")
def check_worker_groups(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> Iterable[CheckMessage]:
    """Hold each group to RabbitMQ's patience: a worker takes a message of each queue before it has a slot."""
    if not settings.ON_RABBITMQ:
        return
    limits = {job.name: job.hard_limit for job in jobs.every()}
    for group, queues in settings.WORKER_GROUPS.items():
        longest = sum(limits.get(queue, 0.0) for queue in queues)
        if longest >= settings.BROKER_PATIENCE_SECONDS:
            yield _error(
                8,
                f"{group}: a message may wait {longest:g} s for its turn in a worker; RabbitMQ takes it back"
                f" after {settings.BROKER_PATIENCE_SECONDS} s",
                f"raise {_patience_setting()}, or divide the group",
            )


def _patience_setting() -> str:
    if settings.ON_RABBITMQ:
        return "RabbitMQ's consumer_timeout and CONSUMER_TIMEOUT_SECONDS"
    return "VISIBILITY_TIMEOUT_SECONDS"


@register(Tags.security, deploy=True)
def check_deployment(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> Iterable[CheckMessage]:
    """Refuse a deployment that was set up for tests."""
    if settings.CRASHPOINTS:
        yield _error(
            6,
            f"CRASHPOINTS is set: {', '.join(settings.CRASHPOINTS)}",
            "unset it; only tests crash on purpose",
        )
    if not settings.METRICS_TOKEN:
        yield _error(7, "METRICS_TOKEN is empty, so nobody can read /metrics", "set it to a long random text")


@worker_init.connect
def refuse_to_work(**kwargs: Any) -> None:
    """Hold a worker to the checks, as manage.py is: Celery runs them for Django and ignores what they say."""
    try:
        BaseCommand().check(tags=["teguh"])
    except SystemCheckError as refused:
        sys.exit(str(refused))


def _error(number: int, message: str, hint: str) -> Error:
    return Error(message, hint=hint, id=f"teguh.E{number:03}")
