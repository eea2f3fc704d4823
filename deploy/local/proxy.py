"""A proxy in front of PostgreSQL's Unix socket that loses connections on purpose, at a chosen statement.

It reads what clients send (PostgreSQL docs, "Frontend/Backend Protocol", "Message Formats"), so a test can
say "when a transaction that did this commits, let the server do it and lose the answer".
"""

import asyncio
import contextlib
import struct
import tempfile
import threading
from asyncio import StreamReader, StreamWriter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self
from urllib.parse import quote

SOCKET = ".s.PGSQL.5432"
LENGTH = struct.Struct("!i")
QUERY, PARSE, BIND, READY_FOR_QUERY = b"Q", b"P", b"B", b"Z"


@dataclass
class Toxic:
    """What to do at the next statement that contains `at`, in a transaction that has said `within` before.

    `before`: it is not sent. `after`: it is, and its answer swallowed. Then both ends are closed (reset),
    or nothing is ever said again (blackhole).
    """

    at: str
    when: Literal["before", "after"]
    within: str = ""
    then: Literal["reset", "blackhole"] = "reset"
    times: int = 1


class Proxy:
    """Listens beside the server, in a thread of its own."""

    def __init__(self, upstream: Path) -> None:
        """Take the server's socket."""
        self.upstream = upstream
        self.toxics: list[Toxic] = []
        self.fired = 0
        self._directory = tempfile.TemporaryDirectory(prefix="teguh-")
        self._loop = asyncio.new_event_loop()
        self._door: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={quote(self._directory.name)}&port=5432"

    def add(self, toxic: Toxic) -> None:
        self.toxics.append(toxic)

    def take(self, statement: str, transaction: str) -> Toxic | None:
        """Give the toxic that this statement is for, if there is one left."""
        for toxic in self.toxics:
            if toxic.times and toxic.at in statement and toxic.within in transaction:
                toxic.times -= 1
                self.fired += 1
                return toxic
        return None

    def __enter__(self) -> Self:
        self._thread.start()
        listening = asyncio.start_unix_server(self._serve, path=Path(self._directory.name) / SOCKET)
        self._door = asyncio.run_coroutine_threadsafe(listening, self._loop).result()
        return self

    def __exit__(self, *error: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._directory.cleanup()

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            server = await asyncio.open_unix_connection(self.upstream)
        except OSError:  # it is down: so is the way to it
            writer.transport.abort()
            return
        await Conversation(self, (reader, writer), server).go_on()

    async def _end(self) -> None:
        if self._door is not None:
            self._door.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)  # what was aborted is closed in the loop's next round


@dataclass
class Conversation:
    """One client's connection and the server's."""

    proxy: Proxy
    client: tuple[StreamReader, StreamWriter]
    server: tuple[StreamReader, StreamWriter]
    _prepared: dict[bytes, str] = field(default_factory=dict)  # statements by name
    _transaction: str = ""
    _swallow: Toxic | None = None

    async def go_on(self) -> None:
        """Carry messages until one end closes, or a toxic does."""
        ways = [asyncio.create_task(self._requests()), asyncio.create_task(self._answers())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
                with contextlib.suppress(asyncio.CancelledError, asyncio.IncompleteReadError, OSError):
                    await way
            for _, writer in (self.client, self.server):
                writer.transport.abort()

    async def _requests(self) -> None:
        reader, writer = self.client[0], self.server[1]
        writer.write(await _startup(reader))
        while True:
            kind, message = await _message(reader)
            toxic = self.proxy.take(*self._said(kind, message))
            if toxic is not None and toxic.when == "before":
                await _lose(toxic)
                return
            self._swallow = toxic or self._swallow
            writer.write(message)
            await writer.drain()

    async def _answers(self) -> None:
        reader, writer = self.server[0], self.client[1]
        while True:
            kind, message = await _message(reader)
            if self._swallow is None:
                writer.write(message)
                await writer.drain()
            elif kind == READY_FOR_QUERY:
                await _lose(self._swallow)
                return

    def _said(self, kind: bytes, message: bytes) -> tuple[str, str]:
        """Give the statement that a message runs, if it runs one, and what its transaction said before."""
        statement, before = self._statement(kind, message[5:]), self._transaction
        if statement.startswith("BEGIN"):
            before = self._transaction = ""
        self._transaction += statement
        return statement, before

    def _statement(self, kind: bytes, body: bytes) -> str:
        if kind == QUERY:
            return body.rstrip(b"\0").decode()
        if kind == PARSE:
            name, statement, _ = body.split(b"\0", 2)
            self._prepared[name] = statement.decode()
        if kind == BIND:
            _, name, _ = body.split(b"\0", 2)
            return self._prepared.get(name, "")
        return ""


async def _startup(reader: StreamReader) -> bytes:
    length = await reader.readexactly(LENGTH.size)
    return length + await reader.readexactly(LENGTH.unpack(length)[0] - LENGTH.size)


async def _message(reader: StreamReader) -> tuple[bytes, bytes]:
    kind, length = await reader.readexactly(1), await reader.readexactly(LENGTH.size)
    return kind, kind + length + await reader.readexactly(LENGTH.unpack(length)[0] - LENGTH.size)


async def _lose(toxic: Toxic) -> None:
    if toxic.then == "blackhole":
        await asyncio.Event().wait()
