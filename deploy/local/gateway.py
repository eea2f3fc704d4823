"""The payment gateway of development and tests: it speaks Stripe's protocol as far as the product does.

A process with a store and a journal of its own, made to fail at will: `/_control/` is for people and tests.
"""

import argparse
import json
import re
import socket
import sys
import time
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from deploy.local.ending import end_on_signals
from deploy.local.gateway_bank import Bank, Refusal
from deploy.local.gateway_hooks import Hooks
from deploy.local.gateway_store import Fault, Store

DROPPED, CLIENT_GONE = "dropped", "client gone"


class Gateway(ThreadingHTTPServer):
    """The server; a port of 0 means a free one."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, store: Store, *, api_key: str, hooks: Hooks, port: int = 0) -> None:
        self.store, self.bank, self.hooks, self.api_key = store, Bank(store), hooks, api_key
        super().__init__(("127.0.0.1", port), Conversation)

    def server_close(self) -> None:
        super().server_close()
        self.hooks.close()
        self.store.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Conversation(BaseHTTPRequestHandler):
    """One client's connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Gateway

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
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        control = CONTROL.get((self.command, path))
        if control is not None:
            self._answer(200, json.dumps(control(self.server, json.loads(body or b"{}"))))
            return
        for method, pattern, name in ROUTES:
            found = re.fullmatch(pattern, path)
            if found and method == self.command:
                self._serve(name, found.groups(), body)
                return
        self._answer(404, _error(code="resource_missing", message=f"Unrecognized request URL ({path})"))

    def _serve(self, name: str, ids: tuple[str, ...], body: bytes) -> None:
        """Answer a request of the product's: limiter, key, engine, reply, each of which a fault may spoil."""
        store, key = self.server.store, self.headers.get("Idempotency-Key")
        seen = store.arrived(self.command, urlsplit(self.path).path, key)
        try:
            answer = self._served(name, ids, body.decode(), key)
        except ConnectionError:
            answer = CLIENT_GONE
        store.answered(seen, answer)

    def _served(self, name: str, ids: tuple[str, ...], body: str, key: str | None) -> str:
        if self.headers.get("Authorization") != f"Bearer {self.server.api_key}":
            return self._answer(401, _error(message="Invalid API Key provided"))
        limited = self.server.store.take_fault(name, "limiter")
        if limited is not None:
            time.sleep(limited.delay_seconds)
            return self._spoilt(limited, 200, "")
        asked = _nested(urlsplit(self.path).query if self.command == "GET" else body)
        if self.command == "GET" or key is None:
            status, text = self._done(name, ids, asked, None)
            return self._reply(name, status, text)
        return self._once(name, ids, asked, key)

    def _once(self, name: str, ids: tuple[str, ...], asked: dict[str, Any], key: str) -> str:
        """Do what a key is new for; else answer as it was answered before."""
        store, spelt = self.server.store, json.dumps([name, ids, asked], sort_keys=True)
        before = store.begin(key, spelt)
        if before is None:
            status, text = self._done(name, ids, asked, key)
            return self._reply(name, status, text)
        if before["asked"] != spelt:
            told = "Keys for idempotent requests can only be used with the same parameters."
            return self._answer(400, _error(type="idempotency_error", message=told))
        if before["status"] is None:
            return self._answer(409, _error(code="idempotency_key_in_use", message="The key is in use."))
        return self._reply(name, before["status"], before["body"], {"Idempotent-Replayed": "true"})

    def _done(
        self, name: str, ids: tuple[str, ...], asked: dict[str, Any], key: str | None
    ) -> tuple[int, str]:
        """Do it and let the key remember the answer, both or neither; or fail as a fault says."""
        store = self.server.store
        fault = store.take_fault(name, "engine")
        if fault is not None:
            time.sleep(fault.delay_seconds)
            status, text = fault.status or 500, _error(**{"type": "api_error", **fault.error})
            store.save(key, status, text)
            return status, text
        try:
            with store.at_once():
                text = json.dumps(_do(self.server.bank, name, ids, asked, key))
                store.save(key, 200, text)
        except Refusal as refused:
            return self._refused(refused, key)
        return 200, text

    def _refused(self, refused: Refusal, key: str | None) -> tuple[int, str]:
        """Let the key remember a refusal, and keep what a decline changes: the intent wants another card."""
        store, text = self.server.store, json.dumps({"error": refused.error})
        with store.at_once():
            if refused.status == 402:
                store.put("intent", refused.error["payment_intent"])
                store.tell("payment_intent.payment_failed", refused.error["payment_intent"])
            if refused.save:
                store.save(key, refused.status, text)
            else:
                store.forget(key)
        return refused.status, text

    def _reply(self, name: str, status: int, text: str, headers: dict[str, str] | None = None) -> str:
        fault = self.server.store.take_fault(name, "reply")
        if fault is None:
            return self._answer(status, text, headers)
        time.sleep(fault.delay_seconds)
        return self._spoilt(fault, status, text, headers)

    def _spoilt(self, fault: Fault, status: int, text: str, headers: dict[str, str] | None = None) -> str:
        if fault.drop:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return DROPPED
        if fault.status is not None:
            status, text = fault.status, _error(**fault.error)
        if fault.change:
            text = json.dumps({**json.loads(text), **fault.change})
        body = text if fault.body is None else fault.body
        return self._answer(status, body, {**(headers or {}), **fault.headers})

    def _answer(self, status: int, text: str, headers: dict[str, str] | None = None) -> str:
        body = text.encode()
        shown = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        self.send_response(status)
        for name, value in {**shown, "Request-Id": f"req_{uuid.uuid4().hex[:14]}", **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        return str(status)


ROUTES = [
    ("POST", r"/v1/payment_intents", "create"),
    ("GET", r"/v1/payment_intents", "list"),
    ("GET", r"/v1/payment_intents/(pi_\w+)", "retrieve"),
    ("POST", r"/v1/payment_intents/(pi_\w+)/confirm", "confirm"),
    ("POST", r"/v1/payment_intents/(pi_\w+)/capture", "capture"),
    ("POST", r"/v1/payment_intents/(pi_\w+)/cancel", "cancel"),
    ("POST", r"/v1/refunds", "refund"),
    ("GET", r"/v1/refunds", "refunds"),
]


def _do(
    bank: Bank, name: str, ids: tuple[str, ...], asked: dict[str, Any], key: str | None
) -> dict[str, Any]:
    match name:
        case "create":
            return bank.create(asked, key)
        case "list":
            return bank.listed(asked)
        case "refund":
            return bank.refund(asked, key)
        case "refunds":
            wanted = asked.get("payment_intent")
            found = [each for each in bank.refunds() if wanted in (None, each["payment_intent"])]
            return {"object": "list", "url": "/v1/refunds", "has_more": False, "data": found}
    intent = bank.find(ids[0])
    if name != "retrieve":
        intent = getattr(bank, name)(intent, asked, key)
    return bank.expanded(intent) if "latest_charge" in asked.get("expand", {}).values() else intent


def _hooks(gateway: Gateway, asked: dict[str, Any]) -> dict[str, Any]:
    for name in ("held", "doubled", "shuffled"):
        setattr(gateway.hooks, name, bool(asked.get(name, getattr(gateway.hooks, name))))
    return {}


CONTROL: dict[tuple[str, str], Callable[[Gateway, dict[str, Any]], dict[str, Any]]] = {
    ("GET", "/_control/health"): lambda gateway, asked: {"ok": True},
    ("POST", "/_control/faults"): lambda gateway, asked: gateway.store.add_fault(Fault(**asked)) or {},  # type: ignore[func-returns-value]
    ("DELETE", "/_control/faults"): lambda gateway, asked: gateway.store.clear_faults() or {},  # type: ignore[func-returns-value]
    ("DELETE", "/_control/keys"): lambda gateway, asked: gateway.store.forget_keys() or {},  # type: ignore[func-returns-value]
    ("GET", "/_control/journal"): lambda gateway, asked: {"entries": gateway.store.journal()},
    ("GET", "/_control/requests"): lambda gateway, asked: {"entries": gateway.store.requests()},
    ("GET", "/_control/events"): lambda gateway, asked: {"entries": gateway.store.events()},
    ("PUT", "/_control/hooks"): _hooks,
    ("POST", "/_control/deliver"): lambda gateway, asked: {"statuses": gateway.hooks.deliver(asked["ids"])},
    # What nobody asked for: a charge with or without our metadata.
    ("POST", "/_control/charge"): lambda gateway, asked: _charge(gateway.bank, asked),
    ("POST", "/_control/refund"): lambda gateway, asked: gateway.bank.refund(asked, None),
}


def _charge(bank: Bank, asked: dict[str, Any]) -> dict[str, Any]:
    intent = bank.create({"payment_method": "pm_card_visa", "capture_method": "manual", **asked}, None)
    return bank.capture(bank.confirm(intent, {}, None), {}, None)


def _error(**members: Any) -> str:
    return json.dumps({"error": {"type": "invalid_request_error", **members}})


def _nested(form: str) -> dict[str, Any]:
    """Read a form whose names have brackets: a[b]=c is {"a": {"b": "c"}}, and so is a[0]=c."""
    read: dict[str, Any] = {}
    for name, value in parse_qsl(form, keep_blank_values=True):
        outer, *inner = re.findall(r"[^\[\]]+", name)
        if not inner and not name.endswith("[]"):
            read[outer] = value
        else:
            members = read.setdefault(outer, {})
            members[inner[0] if inner else str(len(members))] = value
    return read


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8900, help="0 takes a free one (default: 8900)")
    parser.add_argument("--directory", type=Path, default=Path("var/gateway"), help="where its store is")
    parser.add_argument("--api-key", default="sk_test_of_this_machine", help="whose bearer is served")
    parser.add_argument("--webhook-url", default="", help="where events go; empty: nowhere")
    parser.add_argument("--webhook-secret", default="whsec_of_this_machine", help="signs them")
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)

    end_on_signals()
    store = Store(arguments.directory / "gateway.sqlite")
    hooks = Hooks(store, arguments.webhook_url, arguments.webhook_secret)
    with Gateway(store, api_key=arguments.api_key, hooks=hooks, port=arguments.port) as gateway:
        print(f"gateway ready: {gateway.url}", flush=True)
        try:
            gateway.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
