"""What the payment gateway does with money: payment intents up to capture or cancel, and refunds.

Only what the product asks for, and as Stripe answers it: https://docs.stripe.com/api/payment_intents.
"""

import time
import uuid
from collections.abc import Mapping
from typing import Any

from deploy.local.gateway_store import Store

HOLD_SECONDS = 7 * 24 * 3_600  # after which an authorisation lapses
# Payment methods of the tests that are declined, and how. Any other `pm_…` is good.
DECLINES = {
    "pm_card_chargeDeclined": ("card_declined", "generic_decline"),
    "pm_card_chargeDeclinedInsufficientFunds": ("card_declined", "insufficient_funds"),
    "pm_card_chargeDeclinedLostCard": ("card_declined", "lost_card"),
    "pm_card_chargeDeclinedStolenCard": ("card_declined", "stolen_card"),
    "pm_card_chargeDeclinedFraudulent": ("card_declined", "fraudulent"),
    "pm_card_chargeDeclinedDoNotHonor": ("card_declined", "do_not_honor"),
    "pm_card_chargeDeclinedIssuerNotAvailable": ("card_declined", "issuer_not_available"),
    "pm_card_chargeDeclinedReenter": ("card_declined", "reenter_transaction"),
    "pm_card_chargeDeclinedApproveWithId": ("card_declined", "approve_with_id"),
    "pm_card_chargeDeclinedDuplicate": ("card_declined", "duplicate_transaction"),
    "pm_card_chargeDeclinedExpiredCard": ("expired_card", "expired_card"),
    "pm_card_chargeDeclinedProcessingError": ("processing_error", "processing_error"),
    "pm_card_authenticationRequired": ("authentication_required", "authentication_required"),
}
CANCELLABLE = ("requires_payment_method", "requires_confirmation", "requires_action", "requires_capture")

Thing = dict[str, Any]


class Refusal(Exception):
    """An error answer: a status, and what stands under `error`."""

    def __init__(self, status: int, *, save: bool = True, **error: Any) -> None:
        """Take the members of `error`; `save` says whether the key remembers it."""
        super().__init__(error.get("message", error.get("code", "")))
        self.status, self.save = status, save
        self.error = {"type": "invalid_request_error", **error}


class Bank:
    """The payment intents of one account."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def create(self, asked: Mapping[str, Any], key: str | None) -> Thing:
        amount, currency = _number(asked, "amount"), str(asked.get("currency", "")).lower()
        if len(currency) != 3:
            raise Refusal(400, save=False, code="parameter_invalid_string", param="currency")
        method = asked.get("payment_method")
        intent = {
            "id": f"pi_{uuid.uuid4().hex[:24]}",
            "object": "payment_intent",
            "created": int(time.time()),
            "amount": amount,
            "amount_capturable": 0,
            "amount_received": 0,
            "currency": currency,
            "capture_method": asked.get("capture_method", "automatic"),
            "payment_method": method,
            "status": "requires_payment_method" if method is None else "requires_confirmation",
            "latest_charge": None,
            "metadata": dict(asked.get("metadata", {})),
        }
        self._keep(intent, "payment_intent.created")
        self._store.note("created", intent, amount, key)
        return intent

    def confirm(self, intent: Thing, asked: Mapping[str, Any], key: str | None) -> Thing:
        method = asked.get("payment_method", intent["payment_method"])
        if intent["status"] not in ("requires_payment_method", "requires_confirmation") or method is None:
            raise _unexpected(intent)
        intent = {**intent, "payment_method": method}
        if method in DECLINES:
            code, decline = DECLINES[method]
            failed = {**intent, "status": "requires_payment_method"}
            raise Refusal(
                402,
                type="card_error",
                code=code,
                decline_code=decline,
                message="The card was declined.",
                payment_intent=failed,
            )
        charge = f"ch_{uuid.uuid4().hex[:24]}"
        held = {
            **intent,
            "status": "requires_capture",
            "amount_capturable": intent["amount"],
            "latest_charge": charge,
        }
        self._store.put(
            "charge",
            {"id": charge, "created": int(time.time()), "capture_before": int(time.time()) + HOLD_SECONDS},
        )
        self._keep(held, "payment_intent.amount_capturable_updated")
        self._store.note("authorised", held, held["amount"], key)
        return held

    def capture(self, intent: Thing, asked: Mapping[str, Any], key: str | None) -> Thing:
        if intent["status"] != "requires_capture":
            raise _unexpected(intent)
        taken = {
            **intent,
            "status": "succeeded",
            "amount_received": intent["amount_capturable"],
            "amount_capturable": 0,
        }
        self._keep(taken, "payment_intent.succeeded")
        self._store.note("captured", taken, taken["amount_received"], key)
        return taken

    def cancel(self, intent: Thing, asked: Mapping[str, Any], key: str | None) -> Thing:
        if intent["status"] not in CANCELLABLE:
            raise _unexpected(intent)
        gone = {**intent, "status": "canceled", "amount_capturable": 0}
        self._keep(gone, "payment_intent.canceled")
        self._store.note("canceled", gone, intent["amount_capturable"], key)
        return gone

    def refund(self, asked: Mapping[str, Any], key: str | None) -> Thing:
        intent = self._store.get("intent", str(asked.get("payment_intent")))
        if intent is None or intent["status"] != "succeeded":
            raise Refusal(400, code="charge_not_refundable", message="There is nothing to refund.")
        amount = _number(asked, "amount") if "amount" in asked else intent["amount_received"]
        given = [each for each in self.refunds() if each["payment_intent"] == intent["id"]]
        if any(each["amount"] + amount > intent["amount_received"] for each in given):
            raise Refusal(400, code="charge_already_refunded", message="It has been refunded.")
        refund = {
            "id": f"re_{uuid.uuid4().hex[:24]}",
            "object": "refund",
            "created": int(time.time()),
            "amount": amount,
            "currency": intent["currency"],
            "payment_intent": intent["id"],
            "status": "succeeded",
            "metadata": dict(asked.get("metadata", {})),
        }
        self._store.put("refund", refund)
        self._store.tell(
            "charge.refunded", {"object": "charge", "payment_intent": intent["id"], "amount_refunded": amount}
        )
        self._store.note("refunded", intent, amount, key)
        return refund

    def refunds(self) -> list[Thing]:
        return self._store.newest("refund", since=0, until=2**40)

    def find(self, id: str) -> Thing:
        intent = self._store.get("intent", id)
        if intent is None:
            raise Refusal(404, code="resource_missing", message=f"No such payment_intent: '{id}'")
        return intent

    def expanded(self, intent: Thing) -> Thing:
        """Give an intent with its charge in place of the charge's id."""
        charge = intent["latest_charge"] and self._store.get("charge", intent["latest_charge"])
        if not charge:
            return intent
        card = {"capture_before": charge["capture_before"]}
        shown = {
            "id": charge["id"],
            "object": "charge",
            "payment_method_details": {"card": card, "type": "card"},
        }
        return {**intent, "latest_charge": shown}

    def listed(self, asked: Mapping[str, Any]) -> Thing:
        created = asked.get("created", {})
        found = self._store.newest(
            "intent", since=int(created.get("gte", 0)), until=int(created.get("lte", 2**40))
        )
        after = asked.get("starting_after")
        if after is not None:
            ids = [intent["id"] for intent in found]
            found = found[ids.index(after) + 1 :] if after in ids else []
        limit = int(asked.get("limit", 10))
        return {
            "object": "list",
            "url": "/v1/payment_intents",
            "has_more": len(found) > limit,
            "data": found[:limit],
        }

    def _keep(self, intent: Thing, event: str) -> None:
        self._store.put("intent", intent)
        self._store.tell(event, intent)


def _number(asked: Mapping[str, Any], name: str) -> int:
    try:
        number = int(asked[name])
    except (KeyError, ValueError):
        number = 0
    if number < 1:
        raise Refusal(
            400, save=False, code="parameter_invalid_integer", param=name, message=f"Invalid {name}"
        )
    return number


def _unexpected(intent: Thing) -> Refusal:
    return Refusal(
        400,
        code="payment_intent_unexpected_state",
        message=f"This PaymentIntent's status is {intent['status']}.",
        payment_intent=intent,
    )
