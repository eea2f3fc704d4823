"""A line to a server that can be held up, or go dead at both ends without either being told."""

import asyncio
import contextlib
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from deploy.local.ports import LOOPBACK

CHUNK_BYTES = 65_536


@dataclass(eq=False)
class Strand:
    """One client's connection and the server's."""

    writers: list[StreamWriter] = field(default_factory=list)
    dead: bool = False

    def abort(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class Cable:
    """Listens on a port of its own in front of a server's Unix socket or port, in a thread of its own."""

    def __init__(self, upstream: Path | int) -> None:
        """Take the server's socket, or its port on this machine."""
        self.upstream = upstream
        self.port = 0
        self._strands: set[Strand] = set()
        self._loop = asyncio.new_event_loop()
        self._flows = asyncio.Event()
        self._door: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="cable", daemon=True)

    def hang(self) -> None:
        """Hold back all that is said. New connections are made, and get no answer."""
        self._do(self._hang())

    def go_dead(self) -> None:
        """Lose whatever is said on the connections there are, and tell nobody; new ones are fine.

        So it is when a firewall forgets a connection, or the machine at the other end is gone.
        """
        self._do(self._go_dead())

    def mend(self) -> None:
        """Let pass what was held back and what comes. What went dead stays so."""
        self._do(self._mend())

    def __enter__(self) -> Self:
        self._thread.start()
        self._door = self._do(asyncio.start_server(self._serve, LOOPBACK, 0))
        self.port = int(self._door.sockets[0].getsockname()[1])
        self.mend()
        return self

    def __exit__(self, *error: object) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result()

    async def _hang(self) -> None:
        self._flows.clear()

    async def _go_dead(self) -> None:
        for strand in self._strands:
            strand.dead = True

    async def _mend(self) -> None:
        self._flows.set()

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        strand = Strand([writer])
        self._strands.add(strand)
        try:
            await self._carry(strand, reader, writer)
        except (OSError, asyncio.CancelledError):  # the server is down, an end was reset, or it is over
            pass
        finally:
            strand.abort()
            self._strands.discard(strand)

    async def _carry(self, strand: Strand, reader: StreamReader, writer: StreamWriter) -> None:
        await self._flows.wait()
        there, back = await self._to_server()
        strand.writers.append(back)
        ways = [asyncio.create_task(self._pump(strand, *way)) for way in ((reader, back), (there, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
                with contextlib.suppress(asyncio.CancelledError, OSError):
                    await way

    async def _to_server(self) -> tuple[StreamReader, StreamWriter]:
        if isinstance(self.upstream, Path):
            return await asyncio.open_unix_connection(self.upstream)
        return await asyncio.open_connection(LOOPBACK, self.upstream)

    async def _pump(self, strand: Strand, reader: StreamReader, writer: StreamWriter) -> None:
        """Carry one way until its end closes; of a dead strand, the other end never hears of it."""
        while data := await reader.read(CHUNK_BYTES):
            await self._flows.wait()
            if not strand.dead:
                writer.write(data)
                await writer.drain()
        await self._flows.wait()
        if strand.dead:
            await asyncio.Event().wait()

    async def _end(self) -> None:
        if self._door is not None:
            self._door.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)  # what was aborted is closed in the loop's next round
