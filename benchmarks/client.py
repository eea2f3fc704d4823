"""The load: prepared requests over keep-alive connections, as fast as the answers come."""

import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

CONNECTIONS = 4  # twice the slots of a small machine: the server never waits for us
TIMEOUT_SECONDS = 30.0


class Unexpected(RuntimeError):
    """An answer was not the one that the benchmark is about."""


@dataclass(frozen=True)
class Answer:
    """One HTTP answer, header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    seconds: float


@dataclass
class Load:
    """What a burst of requests got, in their order, and how long all of it took."""

    answers: list[Answer] = field(default_factory=list)
    seconds: float = 0.0


class Connection:
    """One keep-alive connection; one request at a time."""

    def __init__(self, url: str) -> None:
        """Connect."""
        address = urlsplit(url)
        self._socket = socket.create_connection((address.hostname, address.port), TIMEOUT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request: bytes) -> Answer:
        began = time.perf_counter()
        self._socket.sendall(request)
        head, _, body = self._read_until(b"\r\n\r\n").partition(b"\r\n\r\n")
        status_line, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        status = int(status_line.split(" ", 2)[1])
        missing = (0 if status == 304 else int(headers["content-length"])) - len(body)
        while missing > 0:
            body += self._more()
            missing = int(headers["content-length"]) - len(body)
        return Answer(status, headers, body, time.perf_counter() - began)

    def close(self) -> None:
        self._socket.close()

    def _read_until(self, mark: bytes) -> bytes:
        got = self._more()
        while mark not in got:
            got += self._more()
        return got

    def _more(self) -> bytes:
        got = self._socket.recv(65_536)
        if not got:
            raise ConnectionError("the server closed a connection that was to be kept")
        return got


def request(method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    """Write down one HTTP/1.1 request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def send(url: str, requests: Sequence[bytes], *, expecting: int) -> Load:
    """Send all requests over CONNECTIONS connections at once, each waiting for an answer before the next.

    Raises:
        Unexpected: an answer has another status than `expecting`, or none came.
    """
    answers: dict[int, Answer] = {}
    connections = [Connection(url) for _ in range(CONNECTIONS)]
    shares = [range(first, len(requests), CONNECTIONS) for first in range(CONNECTIONS)]
    threads = [
        threading.Thread(target=_work_off, args=(connection, requests, share, answers))
        for connection, share in zip(connections, shares, strict=True)
    ]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    for connection in connections:
        connection.close()
    return Load([_checked(answers.get(number), expecting) for number in range(len(requests))], seconds)


def _work_off(
    connection: Connection, requests: Sequence[bytes], share: range, answers: dict[int, Answer]
) -> None:
    for number in share:
        answers[number] = connection.ask(requests[number])


def _checked(answer: Answer | None, expecting: int) -> Answer:
    if answer is None or answer.status != expecting:
        got = "no answer" if answer is None else f"{answer.status} {answer.body[:300]!r}"
        raise Unexpected(f"wanted {expecting}, got {got}")
    return answer
