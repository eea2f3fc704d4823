"""How values look on a page: text made harmless, moments told as distances, statuses as badges."""

from datetime import datetime, timedelta
from uuid import UUID

from django import template
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html

from config.plain import plain
from operations.dead_letters import in_general
from operations.models import Resolution, Status

register = template.Library()
register.filter("in_general", in_general)
register.filter("plain", plain)

NOTHING = "—"
TONES: dict[str, str] = {
    Status.QUEUED: "blue",
    Status.PROCESSING: "violet",
    Status.RETRY_SCHEDULED: "amber",
    Status.SUCCEEDED: "green",
    Status.FAILED_PERMANENT: "red",
    Status.IGNORED: "grey",
    Resolution.WAITING: "red",
    Resolution.REPLAYING: "violet",
    Resolution.REPLAYED_OK: "green",
    Resolution.REPLAYED_FAILED: "amber",
    Resolution.DISCARDED: "grey",
}
UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))  # seconds, name


@register.filter
def line(text: str, length: int = 140) -> str:
    """Give a text as one harmless line of at most `length` characters."""
    short = plain(" ".join(text.split()))
    return short if len(short) <= length else f"{short[: length - 1]}…"


@register.filter
def badge(word: str) -> str:
    """Give a status, reason or resolution in its colour."""
    return (
        format_html('<span class="tg-badge tg-{}">{}</span>', TONES.get(word, "grey"), word) if word else ""
    )


def standing(status: str, reason: str) -> str:
    """Give a status with the reason for it beside it."""
    return format_html('{} <span class="tg-quiet">{}</span>', badge(status), reason)


def move(source: str, to: str) -> str:
    return format_html(
        '<span class="tg-move"><span class="tg-quiet">{} →</span> {}</span>', source or "nothing", badge(to)
    )


def code(text: str) -> str:
    return format_html('<span class="tg-id">{}</span>', plain(text)) if text else ""


def error(error_class: str, message: str) -> str:
    return format_html("<b>{}</b> {}", line(error_class, 60), line(message))


@register.filter
def when(at: datetime | None) -> str:
    """Give a moment as a distance from now, with the moment itself under the pointer."""
    if at is None:
        return NOTHING
    return format_html(
        '<time class="tg-when" datetime="{}" title="{}">{}</time>',
        at.isoformat(),
        f"{at:%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC",
        distance(at, timezone.now()),
    )


def distance(at: datetime, now: datetime) -> str:
    """Say how far `at` is from `now`: "3 min ago", "in 40 s"."""
    ahead = (at - now).total_seconds()
    if abs(ahead) < 1:
        return "now"
    return f"in {span(at - now)}" if ahead > 0 else f"{span(now - at)} ago"


@register.filter
def percent(share: float | None) -> str:
    return NOTHING if share is None else f"{100 * share:.1f} %"


@register.filter
def seconds(length: float | None) -> str:
    """Give so many seconds as a length of time."""
    return NOTHING if length is None else span(timedelta(seconds=length))


@register.filter
def span(length: timedelta) -> str:
    """Give a length of time in its largest unit, two where the first alone would be coarse."""
    seconds = abs(length.total_seconds())
    for position, (size, unit) in enumerate(UNITS):
        if seconds >= size:
            whole, rest = divmod(seconds, size)
            finer = (*UNITS, (1, "s"))[position + 1]
            more = f" {rest // finer[0]:.0f} {finer[1]}" if whole < 10 and rest >= finer[0] else ""
            return f"{whole:.0f} {unit}{more}"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


@register.filter
def operation_link(operation_id: UUID) -> str:
    """Link to the page of an operation (purged since, maybe) by the end of its id: the start is its time."""
    address = reverse("admin:operations_operation_change", args=[operation_id])
    return format_html(
        '<a class="tg-id" href="{}" title="{}">…{}</a>', address, operation_id, str(operation_id)[-12:]
    )


def target(name: str) -> str:
    """Link an audit's target, if it is an operation."""
    kind, _, id = name.partition(":")
    try:
        return operation_link(UUID(id)) if kind == "operation" else plain(name)
    except ValueError:
        return plain(name)
