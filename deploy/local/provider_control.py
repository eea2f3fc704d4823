"""The hand on the inventory provider's switches, for tests, the demo and people."""

from dataclasses import asdict
from typing import Any

import httpx

from deploy.local.provider_store import Fault


class ProviderControl:
    """A client of `/_control/`."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self._client = httpx.Client(base_url=base_url, timeout=5)

    def is_up(self) -> bool:
        try:
            return self._client.get("/_control/health").is_success
        except httpx.TransportError:
            return False

    def set_snapshot(self, user_id: int, *, version: int, items: dict[str, int]) -> None:
        """Say what a user owns from now on.

        Args:
            user_id: Whose.
            version: Of the snapshot; the provider does not mind an old one.
            items: Quantity by sku.
        """
        listed = [{"sku": sku, "quantity": quantity} for sku, quantity in items.items()]
        snapshot = {"version": version, "items": listed}
        self._client.put(f"/_control/users/{user_id}/snapshot", json=snapshot).raise_for_status()

    def fail(self, fault: Fault) -> None:
        """Spoil answers from now on, until the fault has cleared itself or clear_faults is called."""
        self._client.post("/_control/faults", json=asdict(fault)).raise_for_status()

    def clear_faults(self) -> None:
        self._client.delete("/_control/faults").raise_for_status()

    def reset(self) -> None:
        """Forget snapshots and faults; the journal stays."""
        self._client.post("/_control/reset").raise_for_status()

    def journal(self, *, user_id: int | None = None, operation_id: object = None) -> list[dict[str, Any]]:
        """Give what the provider was asked, oldest first.

        Returns:
            One dict a request: sequence, arrived_at, answered_at (ISO 8601, or None while it waits), user_id,
            operation_id and run (as the headers said, or None), answer (an HTTP status as text, "dropped",
            "client gone", or None).
        """
        asked = {"user_id": user_id, "operation_id": operation_id}
        parameters = {name: str(value) for name, value in asked.items() if value is not None}
        answer = self._client.get("/_control/journal", params=parameters).raise_for_status()
        return list(answer.json()["entries"])

    def close(self) -> None:
        self._client.close()
