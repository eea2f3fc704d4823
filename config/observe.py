"""What leaves the process about itself: JSON log lines and, with a DSN, Sentry events."""

from typing import Any

import sentry_sdk

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
COLLECT_NOTHING: Any = {
    "user_info": False,
    "cookies": {"mode": "off"},
    "http_headers": {"request": {"mode": "off"}},
    "http_bodies": [],
    "url_query_params": {"mode": "off"},
    "graphql": {"document": False, "variables": False},
    "gen_ai": {"inputs": False, "outputs": False},
    "database_query_data": False,
    "queues": False,
    "stack_frame_variables": False,
    "frame_context_lines": 5,
}
NOISY = ("httpx", "httpcore", "celery.worker.strategy", "celery.app.trace", "kombu")


def logging_settings(level: str) -> dict[str, Any]:
    """Write one JSON object a line to stderr: an event name in `event`, its data as fields."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "json": {
                "()": "pythonjsonlogger.json.JsonFormatter",
                "format": LOG_FORMAT,
                "rename_fields": {
                    "asctime": "at",
                    "levelname": "level",
                    "name": "logger",
                    "message": "event",
                },
            }
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            **{name: {"level": "WARNING"} for name in NOISY},
            "django.request": {"level": "ERROR"},  # a client's mistake is answered, not logged
        },
    }


def start_sentry(dsn: str, *, release: str, environment: str) -> None:
    """Send errors to Sentry, stripped of all that could hold a client's data. Without a DSN, patch nothing.

    Every field is set, because a field left out of `data_collection` is collected.
    """
    if not dsn:
        return
    sentry_sdk.init(
        dsn=dsn,
        release=release,
        environment=environment,
        data_collection=COLLECT_NOTHING,
        max_request_body_size="never",
        traces_sample_rate=0.0,
        before_send=_scrub,
    )


def _scrub(event: Any, hint: dict[str, Any]) -> Any:
    """Drop the request, breadcrumbs and whatever else a library put beside the error."""
    for unwanted in ("request", "user", "breadcrumbs", "extra", "server_name", "modules"):
        event.pop(unwanted, None)
    return event
