"""A console: a client of the API as unreliable as they come."""

import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx

from deploy.local.people import Person

SYNC = "/v1/inventory/sync"
PATIENCE_SECONDS = 10.0
RESET = struct.pack("ii", 1, 0)  # SO_LINGER for no time: closing resets the connection (socket(7))


class NoAnswer(Exception):
    """The API did not answer a request."""


class Answer(NamedTuple):
    """What a console was told."""

    status: int
    body: dict[str, Any]
    headers: httpx.Headers

    @property
    def id(self) -> str:
        """The operation's id; empty when the answer names none."""
        return str(self.body.get("operation_id", ""))


class Accepted(NamedTuple):
    """A promise that a console was given."""

    user_id: int
    key: str
    id: str


class Console:
    """One user's device. It remembers every operation that it was promised."""

    def __init__(self, url: str, person: Person) -> None:
        self.person = person
        self.accepted: list[Accepted] = []
        self._address = urlsplit(url)
        self._headers = {"Authorization": f"Token {person.token}"}
        self._client = httpx.Client(base_url=url, headers=self._headers, timeout=PATIENCE_SECONDS)

    def sync(self, key: str, *, body: dict[str, Any] | None = None, seen: str | None = None) -> Answer:
        """Ask for a sync.

        Args:
            key: The Idempotency-Key.
            body: Of the request; None means the empty object.
            seen: The ETag of the inventory on the screen, for If-Match.
        """
        headers = {"Idempotency-Key": key} | ({} if seen is None else {"If-Match": seen})
        answer = self._ask("POST", SYNC, json={} if body is None else body, headers=headers)
        if answer.status in {200, 202}:
            self.accepted.append(Accepted(self.person.id, key, answer.id))
        return answer

    def buy(self, key: str, body: dict[str, Any]) -> Answer:
        """Ask for a purchase."""
        return self._ask("POST", "/v1/purchases", json=body, headers={"Idempotency-Key": key})

    def sync_at_once(self, key: str, times: int) -> list[Answer]:
        """Send the same request many times at the same moment."""
        start = Barrier(times)
        with ThreadPoolExecutor(times) as threads:
            sent = [threads.submit(lambda: (start.wait(), self.sync(key))[1]) for _ in range(times)]
        return [each.result() for each in sent]

    def sync_and_vanish(self, key: str, when: Callable[[], object]) -> None:
        """Send a request, and cut the connection after `when` without reading the answer."""
        host, port = self._address.hostname, self._address.port
        head = {**self._headers, "Host": f"{host}:{port}", "Content-Type": "application/json"}
        head |= {"Content-Length": "2", "Idempotency-Key": key}
        lines = [f"POST {SYNC} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items()), "", "{}"]
        with socket.create_connection((str(host), int(port or 80)), PATIENCE_SECONDS) as connection:
            connection.sendall("\r\n".join(lines).encode())
            when()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    def operation(self, id: str) -> Answer:
        return self._ask("GET", f"/v1/operations/{id}")

    def inventory(self) -> Answer:
        return self._ask("GET", "/v1/inventory")

    def close(self) -> None:
        self._client.close()

    def _ask(self, method: str, path: str, **options: Any) -> Answer:
        try:
            response = self._client.request(method, path, **options)
        except httpx.TransportError as error:
            raise NoAnswer(f"{method} {path} → {type(error).__name__}") from error
        body = response.json() if "json" in response.headers.get("Content-Type", "") else {}
        return Answer(response.status_code, body, response.headers)


def owned(answer: Answer) -> dict[str, int]:
    """Read an inventory: quantity by sku."""
    return {item["sku"]: item["quantity"] for item in answer.body.get("items", [])}
