"""What is not ours, at the far end of the wire: Sentry, as far as it takes events."""

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class StandInSentry(ThreadingHTTPServer):
    """Takes envelopes at the address of its DSN and keeps them."""

    daemon_threads = True

    def __init__(self) -> None:
        self.envelopes: list[str] = []
        super().__init__(("127.0.0.1", 0), Conversation)

    @property
    def dsn(self) -> str:
        return f"http://public@127.0.0.1:{self.server_port}/1"

    def events(self, **tags: str) -> list[dict[str, Any]]:
        """Give the events that have these tags, one of each id: Sentry keeps the first that comes with it.

        Source: Sentry developer docs, "Envelopes" and "Event Payloads".
        """
        events = [event for envelope in list(self.envelopes) for event in _events(envelope)]
        kept = {event["event_id"]: event for event in reversed(events)}.values()
        return [event for event in kept if tags.items() <= event.get("tags", {}).items()]


class Conversation(BaseHTTPRequestHandler):
    """One client's connection."""

    server: StandInSentry

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        zipped = self.headers.get("Content-Encoding") == "gzip"
        self.server.envelopes.append((gzip.decompress(body) if zipped else body).decode())
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *values: object) -> None:  # noqa: A002 (the name is the base's)
        """Say nothing: the envelopes are the log."""


@contextmanager
def serving() -> Iterator[StandInSentry]:
    with StandInSentry() as sentry:
        thread = threading.Thread(target=sentry.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield sentry
        finally:
            sentry.shutdown()
            thread.join()


def _events(envelope: str) -> list[dict[str, Any]]:
    """Give an envelope's events: a line of headers, then for each item its headers and its payload."""
    _, *lines = envelope.splitlines()
    items = zip(lines[::2], lines[1::2], strict=False)
    return [json.loads(payload) for headers, payload in items if json.loads(headers).get("type") == "event"]
