"""The hand on the payment gateway's switches, for tests, the demo and people."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import httpx

from deploy.local.gateway_store import Fault


class GatewayControl:
    """A client of `/_control/`."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self._client = httpx.Client(base_url=base_url, timeout=10, trust_env=False)

    def fail(self, **fault: Any) -> None:
        """Spoil requests from now on; the members are Fault's."""
        self._ask("POST", "faults", asdict(Fault(**fault)))

    def clear_faults(self) -> None:
        self._ask("DELETE", "faults")

    def forget_keys(self) -> None:
        """Let a day pass, as far as idempotency keys go."""
        self._ask("DELETE", "keys")

    def hooks(self, **switches: bool) -> None:
        """Say how events are delivered: held, doubled, shuffled."""
        self._ask("PUT", "hooks", switches)

    def deliver(self, ids: Sequence[str]) -> list[int]:
        """Send events in this order and give what each was answered with."""
        return list(self._ask("POST", "deliver", {"ids": list(ids)})["statuses"])

    def charge(self, **asked: Any) -> dict[str, Any]:
        """Make a charge that the product did not ask for; give its intent."""
        return self._ask("POST", "charge", asked)

    def refund(self, **asked: Any) -> dict[str, Any]:
        """Give money back that the product did not give back; give the refund."""
        return self._ask("POST", "refund", asked)

    def journal(self, what: str = "", *, operation_id: str = "") -> list[dict[str, Any]]:
        """Give what has moved, oldest first: {what, intent, amount, currency, operation_id, key}."""
        entries = self._ask("GET", "journal")["entries"]
        return [
            entry
            for entry in entries
            if what in ("", entry["what"]) and operation_id in ("", entry["operation_id"])
        ]

    def requests(self) -> list[dict[str, Any]]:
        """Give what was asked, oldest first: {method, path, key, answer}."""
        return list(self._ask("GET", "requests")["entries"])

    def events(self) -> list[dict[str, Any]]:
        return list(self._ask("GET", "events")["entries"])

    def close(self) -> None:
        self._client.close()

    def _ask(self, method: str, what: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        answer = self._client.request(method, f"/_control/{what}", json={} if body is None else body)
        return dict(answer.raise_for_status().json())
