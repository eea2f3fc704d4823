"""The gateway's door: a signed event is stored and answered at once; what it means is looked at later."""

import logging

import stripe
from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt

from payments import events

log = logging.getLogger(__name__)

LARGEST_BODY_BYTES = 256 * 1024


@method_decorator(csrf_exempt, name="dispatch")
class StripeWebhook(View):
    """POST: 200 once it is stored, new or not; 400 if it is not the gateway's. Not for clients."""

    http_method_names = ["post"]

    def post(self, request: HttpRequest) -> HttpResponse:
        if int(request.META.get("CONTENT_LENGTH") or 0) > LARGEST_BODY_BYTES:
            return _refuse(413, "body-too-large", "The body is too large")
        body = request.read(LARGEST_BODY_BYTES + 1)
        if len(body) > LARGEST_BODY_BYTES:
            return _refuse(413, "body-too-large", "The body is too large")
        if not is_signed(body, request.META.get("HTTP_STRIPE_SIGNATURE")):
            return _refuse(400, "bad-request", "The signature is not the gateway's, or is too old")
        try:
            told = events.read_body(body)
        except events.Unreadable as why:
            return _refuse(400, "bad-request", str(why))
        is_new = events.keep(told)
        fields = {"event_id": told.event_id, "event_type": told.type, "duplicate": not is_new}
        log.info("gateway.told", extra=fields)
        return HttpResponse()


def is_signed(body: bytes, header: str | None) -> bool:
    """Say whether one of our secrets has signed exactly these bytes, not long ago."""
    return any(_signs(secret, body, header) for secret in settings.STRIPE_WEBHOOK_SECRETS)


def _signs(secret: str, body: bytes, header: str | None) -> bool:
    try:
        stripe.WebhookSignature.verify_header(
            body.decode(), header, secret, settings.STRIPE_WEBHOOK_TOLERANCE_SECONDS
        )
    except (stripe.SignatureVerificationError, UnicodeDecodeError):
        return False
    return True


def _refuse(status: int, name: str, title: str) -> HttpResponse:
    log.warning("gateway.refused", extra={"status": status, "why": title})
    problem = {"type": f"/docs/problems#{name}", "title": title, "status": status}
    return JsonResponse(problem, status=status, content_type="application/problem+json")
