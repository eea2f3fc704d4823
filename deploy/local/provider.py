"""The inventory provider of development and tests: a process with a store of its own, made to fail at will.

`GET /v1/users/{user_id}/inventory` is all that the product knows. `/_control/` is for people and tests.
"""

import argparse
import json
import re
import socket
import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from deploy.local.ending import end_on_signals
from deploy.local.provider_store import Fault, Store

DROPPED = "dropped"
CLIENT_GONE = "client gone"


class Provider(ThreadingHTTPServer):
    """The server; a port of 0 means a free one."""

    daemon_threads = True  # an answer that is being delayed does not hold up the end
    request_queue_size = 128  # connections that may wait; 5, the default, refuses a burst

    def __init__(self, store: Store, port: int = 0) -> None:
        self.store = store
        super().__init__(("127.0.0.1", port), Conversation)

    def server_close(self) -> None:
        super().server_close()
        self.store.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Conversation(BaseHTTPRequestHandler):
    """One client's connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes: Nagle would hold the second for 40 ms
    server: Provider

    def do_GET(self) -> None:
        self._route()

    def do_POST(self) -> None:
        self._route()

    def do_PUT(self) -> None:
        self._route()

    def do_DELETE(self) -> None:
        self._route()

    def log_message(self, format: str, *values: object) -> None:  # noqa: A002 (the name is the base's)
        """Say nothing: the journal is the log."""

    def _route(self) -> None:
        path = urlsplit(self.path).path
        for method, pattern, action in ROUTES:
            found = re.fullmatch(pattern, path)
            if found and method == self.command:
                action(self, *map(int, found.groups()))
                return
        self.answer(404, {"title": f"nothing at {self.command} {path}"})

    def inventory(self, user_id: int) -> None:
        """Answer with the snapshot as it was when the request arrived, however long a fault delays that."""
        store = self.server.store
        seen = store.arrived(user_id, self.headers.get("X-Operation-ID"), self.headers.get("X-Run"))
        snapshot, fault = store.snapshot(user_id), store.take_fault(user_id) or Fault()
        time.sleep(fault.delay_seconds)
        try:
            answer = (
                self._spoilt(fault) if fault.drop or fault.status or fault.body else self._snapshot(snapshot)
            )
        except ConnectionError:
            answer = CLIENT_GONE
        store.answered(seen, answer)

    def health(self) -> None:
        self.answer(200, {"ok": True})

    def set_snapshot(self, user_id: int) -> None:
        snapshot = self._body()
        self.server.store.set_snapshot(user_id, snapshot["version"], snapshot["items"])
        self.answer(204)

    def add_fault(self) -> None:
        self.server.store.add_fault(Fault(**self._body()))
        self.answer(204)

    def clear_faults(self) -> None:
        self.server.store.clear_faults()
        self.answer(204)

    def reset(self) -> None:
        self.server.store.reset()
        self.answer(204)

    def journal(self) -> None:
        asked = parse_qs(urlsplit(self.path).query)
        user_id, operation_id = asked.get("user_id", [None])[0], asked.get("operation_id", [None])[0]
        entries = self.server.store.journal(None if user_id is None else int(user_id), operation_id)
        self.answer(200, {"entries": entries})

    def answer(self, status: int, content: object = None, headers: dict[str, str] | None = None) -> None:
        body = b"" if content is None else _encoded(content)
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _snapshot(self, snapshot: dict[str, Any] | None) -> str:
        if snapshot is None:
            self.answer(404, {"title": "no such user"})
            return "404"
        self.answer(200, snapshot)
        return "200"

    def _spoilt(self, fault: Fault) -> str:
        if fault.drop:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return DROPPED
        status = 200 if fault.status is None else fault.status
        headers = {} if fault.retry_after is None else {"Retry-After": fault.retry_after}
        self.answer(status, {"title": "made to fail"} if fault.body is None else fault.body, headers)
        return str(status)

    def _body(self) -> dict[str, Any]:
        return dict(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))


ROUTES: list[tuple[str, str, Callable[..., None]]] = [
    ("GET", r"/v1/users/(\d+)/inventory", Conversation.inventory),
    ("GET", r"/_control/health", Conversation.health),
    ("PUT", r"/_control/users/(\d+)/snapshot", Conversation.set_snapshot),
    ("POST", r"/_control/faults", Conversation.add_fault),
    ("DELETE", r"/_control/faults", Conversation.clear_faults),
    ("POST", r"/_control/reset", Conversation.reset),
    ("GET", r"/_control/journal", Conversation.journal),
]


def _encoded(content: object) -> bytes:
    text = content if isinstance(content, str) else json.dumps(content)
    return text.encode()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8800, help="0 takes a free one (default: 8800)")
    parser.add_argument("--directory", type=Path, default=Path("var/provider"), help="where its store is")
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)

    end_on_signals()
    with Provider(Store(arguments.directory / "provider.sqlite"), arguments.port) as provider:
        print(f"provider ready: {provider.url}", flush=True)
        try:
            provider.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
