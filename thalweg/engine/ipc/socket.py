"""Channels: messages over the ends of a socket pair, blocking in the engine, on the event loop in its client."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Any

from thalweg.engine.ipc.codec import HEADER, Codec, FrameError, body_length


class ChannelClosedError(ConnectionError):
    """The other side is gone."""


class Channel:
    """Blocking side (the engine). Any thread may send. One receives."""

    def __init__(self, fd: int, codec: Codec[Any]) -> None:
        """fd: the inherited end. This object closes it."""
        self._sock = socket.socket(fileno=fd)
        self._codec = codec
        self._sending = threading.Lock()

    def send(self, message: Any) -> None:
        """ChannelClosedError if the other side is gone."""
        self.send_frame(self._codec.encode(message))

    def encode(self, message: Any) -> bytes:
        """The frame of a message, for `send_frame` of any channel with this codec."""
        return self._codec.encode(message)

    def send_frame(self, frame: bytes) -> None:
        """As `send`."""
        try:
            with self._sending:
                self._sock.sendall(frame)
        except OSError as e:
            raise ChannelClosedError(str(e)) from None

    def receive(self) -> Any:
        """The next message. ChannelClosedError at end of stream, FrameError for anything else."""
        return self._codec.decode(self._exactly(body_length(self._exactly(HEADER.size))))

    def _exactly(self, n: int) -> bytes:
        parts = bytearray(n)
        view, got = memoryview(parts), 0
        while got < n:
            try:
                k = self._sock.recv_into(view[got:])
            except OSError as e:
                raise ChannelClosedError(str(e)) from None
            if k == 0:
                raise ChannelClosedError("end of stream")
            got += k
        return bytes(parts)

    def shut(self) -> None:
        """End the stream for both sides. A thread that receives gets ChannelClosedError, which `close` does not promise."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._sock.close()


class AsyncChannel:
    """Event-loop side (the client). Sends keep their order. `send` waits when the peer reads slowly."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, codec: Codec[Any]) -> None:
        self._reader, self._writer, self._codec = reader, writer, codec

    @staticmethod
    async def over(sock: socket.socket, codec: Codec[Any]) -> AsyncChannel:
        reader, writer = await asyncio.open_unix_connection(sock=sock)
        return AsyncChannel(reader, writer, codec)

    def post(self, message: Any) -> None:
        """Queue a message without waiting. ChannelClosedError if the other side is gone."""
        if self._writer.is_closing():
            raise ChannelClosedError("the engine's connection is closed")
        self._writer.write(self._codec.encode(message))

    async def receive(self) -> Any:
        """The next message. ChannelClosedError at end of stream, FrameError for anything else."""
        try:
            head = await self._reader.readexactly(HEADER.size)
            return self._codec.decode(await self._reader.readexactly(body_length(head)))
        except (asyncio.IncompleteReadError, OSError) as e:
            raise ChannelClosedError(str(e)) from None

    async def close(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return


__all__ = ["AsyncChannel", "Channel", "ChannelClosedError", "FrameError"]
