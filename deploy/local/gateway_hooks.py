"""Deliver the gateway's events to the product: signed, at least once, and as badly as a test wants it."""

import hashlib
import hmac
import json
import random
import threading
import time
from collections.abc import Sequence
from typing import Any

import httpx

from deploy.local.gateway_store import Store

POLL_SECONDS = 0.05
RETRY_SECONDS = 0.5  # until what was not taken is sent again


class Hooks:
    """One thread that sends what has not been taken."""

    def __init__(self, store: Store, url: str, secret: str) -> None:
        self.held = False  # nothing is sent by itself
        self.doubled = False  # everything is sent twice
        self.shuffled = False  # what waits is sent in another order
        self._store, self._url, self._secret = store, url, secret
        self._client = httpx.Client(timeout=5, trust_env=False)
        self._retry_at: dict[str, float] = {}
        self._chance = random.Random(7)  # noqa: S311 (an order)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="hooks", daemon=True)
        if url:
            self._thread.start()

    def deliver(self, ids: Sequence[str]) -> list[int]:
        """Send these events in this order, each as often as it is named, and give the answers' statuses."""
        events = {event["id"]: event for event in self._store.events()}
        return [self._send(events[id]) for id in ids]

    def close(self) -> None:
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(timeout=6)
        self._client.close()

    def _go_on(self) -> None:
        while not self._ending.wait(POLL_SECONDS):
            waiting = [] if self.held else self._store.events(undelivered=True)
            if self.shuffled:
                self._chance.shuffle(waiting)
            for event in waiting:
                if time.monotonic() > self._retry_at.get(event["id"], 0) and not self._ending.is_set():
                    self._try(event)

    def _try(self, event: dict[str, Any]) -> None:
        statuses = [self._send(event) for _ in range(2 if self.doubled else 1)]
        if statuses[-1] == httpx.codes.OK:
            self._store.delivered(event["id"])
        self._retry_at[event["id"]] = time.monotonic() + RETRY_SECONDS

    def _send(self, event: dict[str, Any]) -> int:
        body = json.dumps(event).encode()
        headers = {"Stripe-Signature": signature(body, self._secret), "Content-Type": "application/json"}
        try:
            return self._client.post(self._url, content=body, headers=headers).status_code
        except httpx.HTTPError:
            return 0


def signature(body: bytes, secret: str, *, at: float | None = None) -> str:
    """Give the header of a signed body, as https://docs.stripe.com/webhooks#verify-manually describes it."""
    timestamp = int(time.time() if at is None else at)
    signed = hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={timestamp},v1={signed}"
