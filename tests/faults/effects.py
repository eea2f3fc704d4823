"""The outside world, as far as probes are concerned: it counts what is done to it, and tells."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Call(NamedTuple):
    """One effect, with what the caller said about itself."""

    ref: str
    operation_id: str | None
    run: str | None
    key: str | None


class Effects(ThreadingHTTPServer):
    """POST /effects/{ref} is one effect, however often; GET /keys/{key} says whether one had that key."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        self._calls: list[Call] = []
        super().__init__(("127.0.0.1", 0), Conversation)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def note(self, call: Call) -> None:
        self._calls.append(call)

    def knows(self, key: str) -> bool:
        return any(call.key == key for call in list(self._calls))

    def calls(self, ref: str) -> list[Call]:
        return [call for call in list(self._calls) if call.ref == ref]

    def by_ref(self) -> dict[str, list[Call]]:
        """Give all of them under their names, for who looks at thousands."""
        named: dict[str, list[Call]] = {}
        for call in list(self._calls):
            named.setdefault(call.ref, []).append(call)
        return named

    def count(self, ref: str) -> int:
        return len(self.calls(ref))


class Conversation(BaseHTTPRequestHandler):
    """One client's connection."""

    server: Effects

    def do_POST(self) -> None:
        said = (self.headers.get(name) for name in ("X-Operation-ID", "X-Run", "Idempotency-Key"))
        self.server.note(Call(self.path.removeprefix("/effects/"), *said))
        self.send_response(204)
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(200 if self.server.knows(self.path.removeprefix("/keys/")) else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *values: object) -> None:  # noqa: A002 (the name is the base's)
        """Say nothing: the calls are the log."""


@contextmanager
def serving() -> Iterator[Effects]:
    with Effects() as effects:
        thread = threading.Thread(target=effects.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield effects
        finally:
            effects.shutdown()
            thread.join()
