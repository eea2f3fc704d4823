"""Keep what somebody tried in the admin and may not: an attempt is as much worth knowing as an act."""

from django.http import HttpRequest, HttpResponse
from django.views.defaults import permission_denied

from operations import storable
from operations.models import AuditEntry

LONGEST_REASON = 1_000  # characters, as the form of an act allows
LONGEST_CHOICE = 500  # characters of the ids that were chosen


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer 403, Django's way; where somebody wanted to change something, keep who and what."""
    if request.method == "POST" and request.path.startswith("/admin/"):
        _keep(request)
    return permission_denied(request, exception)


def _keep(request: HttpRequest) -> None:
    posted = request.POST
    chosen = posted.get("ids") or ",".join(posted.getlist("_selected_action"))
    AuditEntry.objects.create(
        actor=request.user.get_username()[:150],
        action="refused",
        target=storable.cleaned(request.path)[:200],
        reason=storable.cleaned(posted.get("reason", ""))[:LONGEST_REASON],
        after={
            "action": storable.cleaned(posted.get("action", "")),
            "ids": storable.cleaned(chosen)[:LONGEST_CHOICE],
        },
        request_id=str(getattr(request, "id", ""))[:100],
    )
