"""A TCP proxy that misbehaves as told: late, in slices, slowly, half closed, or reset in the middle. Knows no HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass
from types import TracebackType

from chaosrig.load import rst


@dataclass(frozen=True, slots=True)
class Faults:
    """Of one direction.

    latency: seconds each piece is held back. slices: pieces of at most so many bytes, of random size. rate: bytes per second.
    reset_after: bytes after which both sides get an RST. half_close_after: bytes after which the sender's end is passed
    on although it has not ended (the other direction goes on).
    """

    latency: float = 0.0
    slices: int = 0
    rate: float = 0.0
    reset_after: int | None = None
    half_close_after: int | None = None


class Proxy:
    """A context manager; `port` is where to connect. Connections still open at its end are cut."""

    def __init__(self, upstream: int, *, up: Faults | None = None, down: Faults | None = None, seed: int = 0) -> None:
        self._upstream, self._up, self._down = upstream, up or Faults(), down or Faults()
        self._rng = random.Random(seed)
        self._tasks: set[asyncio.Task[None]] = set()
        self.resets = 0

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=4096)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._carry(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            # A small buffer, so that a slow reader is felt by the server and not hidden here.
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._upstream, limit=4096)
        except OSError:
            rst(writer)
            return
        both = (writer, far_writer)
        try:
            await asyncio.gather(
                self._pump(reader, far_writer, self._up, both), self._pump(far_reader, writer, self._down, both)
            )
        finally:
            for w in both:
                w.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, f: Faults, both: tuple[asyncio.StreamWriter, ...]
    ) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := await reader.read(max(1, int(f.rate)) if f.rate else 1 << 14):
                for piece in self._cut(data, f):
                    if f.latency:
                        await asyncio.sleep(f.latency)
                    if f.rate:
                        await asyncio.sleep(len(piece) / f.rate)
                    writer.write(piece)
                    await writer.drain()
                    passed += len(piece)
                    if f.reset_after is not None and passed >= f.reset_after:
                        self.resets += 1
                        for w in both:
                            rst(w)
                        return
                    if f.half_close_after is not None and passed >= f.half_close_after:
                        writer.write_eof()
                        return
            if writer.can_write_eof():
                writer.write_eof()

    def _cut(self, data: bytes, f: Faults) -> list[bytes]:
        if not f.slices:
            return [data]
        out = []
        while data:
            size = self._rng.randint(1, f.slices)
            out.append(data[:size])
            data = data[size:]
        return out
