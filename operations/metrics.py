"""What is counted, and the page that shows it. Labels are closed lists: never a user, an id or a text."""

import functools
import hmac
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client import values as prometheus_values
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import REGISTRY

ACCEPTED = Counter("ops_operations_accepted_total", "Operations accepted.", ["job_type"])
COMPLETED = Counter(
    "ops_operations_completed_total",
    "Operations that reached a final status.",
    ["job_type", "outcome", "reason", "error_category"],
)
ATTEMPTS = Counter("ops_attempts_total", "Runs that ended, by how.", ["job_type", "result", "error_category"])
ATTEMPT_SECONDS = Histogram(
    "ops_attempt_duration_seconds",
    "How long runs took, whatever came of them.",
    ["job_type", "outcome"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
)
ATTEMPTS_NEEDED = Histogram(
    "ops_attempts_per_operation",
    "Attempts an operation had when it ended.",
    ["job_type", "outcome"],
    buckets=(1, 2, 3, 5, 8, 13),
)
WAIT_SECONDS = Histogram(
    "ops_wait_seconds",
    "From being due to being started.",
    ["queue", "job_type"],
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600),
)
COMPLETION_SECONDS = Histogram(
    "ops_completion_seconds",
    "From being accepted to the final status.",
    ["job_type", "outcome"],
    buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400),
)
DUPLICATES = Counter("ops_duplicate_deliveries_total", "Messages that found nothing to claim.", ["job_type"])
FENCE_REJECTED = Counter(
    "ops_fence_rejected_total", "Writes refused to a worker without the claim.", ["job_type", "write"]
)
LEASE_EXPIRED = Counter("ops_lease_expired_total", "Claims taken back by the relay.", ["job_type"])
KEYS = Counter(
    "ops_idempotency_requests_total", "Requests with a key, by what it named.", ["job_type", "result"]
)
KEYS_PRUNED = Counter("ops_idempotency_pruned_total", "Records of keys that were over, deleted.")
LOCKS = Counter("ops_lock_acquire_total", "Tries to take a resource's lock.", ["lock", "result"])
LOCK_LOST = Counter(
    "ops_lock_lost_total", "Locks that were gone while their holder worked.", ["lock", "cause"]
)
CACHE_REQUESTS = Counter("ops_cache_requests_total", "Cached reads.", ["cache", "result"])
CACHE_INVALIDATIONS = Counter(
    "ops_cache_invalidations_total", "Cached values made stale.", ["cache", "result"]
)
CACHE_FLIGHTS = Counter(
    "ops_cache_singleflight_total",
    "Values that were missing, by who rebuilt them: this reader, another, or each for itself.",
    ["cache", "role"],
)
CACHE_REBUILD = Histogram("ops_cache_rebuild_seconds", "Rebuilding a cached value.", ["cache", "outcome"])
CACHE_STALE_SECONDS = Histogram(
    "ops_cache_stale_seconds", "How long past its fresh time a value was that was served.", ["cache"]
)
CACHE_UNREADABLE = Counter(
    "ops_cache_unreadable_total", "Stored values that were none of ours, and so were loaded anew.", ["cache"]
)
BAD_MESSAGES = Counter(
    "ops_bad_messages_total", "Messages that no worker may work on, by what is wrong.", ["queue", "fault"]
)
PUBLISHED = Counter(
    "ops_relay_published_total", "Messages that the relay handed to the broker, or could not.", ["result"]
)
REDISPATCHED = Counter("ops_redispatched_total", "Messages sent again by the relay.", ["reason"])
DEAD_LETTERS_IN = Counter("ops_dlq_in_total", "Dead letters written.", ["job_type", "reason"])
DEAD_LETTERS_OUT = Counter("ops_dlq_out_total", "Dead letters resolved.", ["job_type", "resolution"])
BREAKER_TRANSITIONS = Counter(
    "ops_breaker_transitions_total", "Changes of breakers, by the state they came to.", ["dependency", "to"]
)
BREAKER_REJECTED = Counter(
    "ops_breaker_rejected_total", "Messages of operations that were held.", ["dependency"]
)

WORKER_LAST_POLL = Gauge(
    "ops_worker_last_poll_timestamp_seconds",
    "When a worker of this queue last took a message, or had none to take or no child to give it to.",
    ["queue"],
    multiprocess_mode="max",
)

# Note [Gauges of shared state]
# What the database holds belongs to no process. The relay samples it (tasks/gauges.py), any relay, so the
# latest sample counts: with "max" the last word of a relay that died at the worst moment would stay for ever.
QUEUE_DEPTH = Gauge(
    "ops_queue_depth",
    "Operations that are not final, by where they are.",
    ["queue", "state"],
    multiprocess_mode="mostrecent",
)
QUEUE_OLDEST_READY = Gauge(
    "ops_queue_oldest_ready_timestamp_seconds",
    "Since when the longest waiting operation is due; now, if none is.",
    ["queue"],
    multiprocess_mode="mostrecent",
)
DEAD_LETTERS = Gauge(
    "ops_dlq_depth",
    "Dead letters that wait for a person, without those that were to be expected.",
    ["job_type", "reason"],
    multiprocess_mode="mostrecent",
)
DEAD_LETTERS_OLDEST = Gauge(
    "ops_dlq_oldest_timestamp_seconds",
    "When the oldest waiting dead letter was written; now, if none waits.",
    ["job_type"],
    multiprocess_mode="mostrecent",
)

OUTCOME_UNKNOWN = Gauge(
    "ops_outcome_unknown_operations",
    "Operations with an effect that may have been sent, and nobody knows.",
    ["dependency"],
    multiprocess_mode="mostrecent",
)
OUTCOME_UNKNOWN_OLDEST = Gauge(
    "ops_outcome_unknown_oldest_timestamp_seconds",
    "When the oldest of them was sent first; now, if there is none.",
    ["dependency"],
    multiprocess_mode="mostrecent",
)
BREAKER_STATE = Gauge(
    "ops_breaker_state",
    "1 for the state that a dependency's breaker is in, 0 for the others.",
    ["dependency", "state"],
    multiprocess_mode="mostrecent",
)
CANARY_LAST_SUCCESS = Gauge(
    "ops_canary_last_success_timestamp_seconds",
    "When a canary last came through this queue and its worker; the first was sent then, if none has.",
    ["queue"],
    multiprocess_mode="mostrecent",
)


@functools.cache
def bound(metric: Counter | Histogram, *labels: str) -> Any:
    """Give a metric with its labels: to look for them costs more than to count."""
    return metric.labels(*labels)


@require_safe
def show(request: HttpRequest) -> HttpResponse:
    """Show every process's numbers to whoever brings METRICS_TOKEN as a bearer token; 404 to all others."""
    given = request.headers.get("Authorization", "").encode()
    wanted = f"Bearer {settings.METRICS_TOKEN}".encode()
    if not settings.METRICS_TOKEN or not hmac.compare_digest(given, wanted):
        return HttpResponse(status=404)
    return HttpResponse(generate_latest(_registry()), content_type=CONTENT_TYPE_LATEST)


def _registry() -> CollectorRegistry:
    """Gather all processes of this machine where PROMETHEUS_MULTIPROC_DIR is set, else this one alone."""
    if prometheus_values.ValueClass.__name__ == "MutexValue":
        return REGISTRY
    together = CollectorRegistry()
    MultiProcessCollector(together)
    return together
