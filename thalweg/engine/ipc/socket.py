"""The one module that makes sockets between our own processes: unix, 0600 in a 0700 directory, peer uid checked.

The client listens, the engine connects, and the name is removed as soon as it has: nothing is left behind, however
either of them dies.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import struct
import tempfile
import threading
from types import TracebackType
from typing import Any

from thalweg.engine.ipc.codec import HEADER, Codec, FrameError, body_length


class ChannelClosedError(ConnectionError):
    """The other side is gone."""


class Listener:
    """A private address for one peer. A context manager; leaving it removes the address."""

    def __init__(self) -> None:
        self._dir = tempfile.mkdtemp(prefix="thalweg-")  # mkdtemp makes it 0700
        self.path = os.path.join(self._dir, "engine")
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.bind(self.path)
        os.chmod(self.path, 0o600)
        self._sock.listen(1)
        self._sock.setblocking(False)

    async def accept(self) -> socket.socket:
        """The peer's connection. PermissionError if it runs as another user."""
        peer, _ = await asyncio.get_running_loop().sock_accept(self._sock)
        _, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
        if uid != os.getuid():
            peer.close()
            raise PermissionError(f"a process of user {uid} connected to a private socket")
        return peer

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self._sock.close()
        shutil.rmtree(self._dir, ignore_errors=True)


class Channel:
    """Blocking side (the engine). Any thread may send; one receives."""

    def __init__(self, path: str, codec: Codec[Any]) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.connect(path)
        self._codec = codec
        self._sending = threading.Lock()

    def send(self, message: Any) -> None:
        """ChannelClosedError if the other side is gone."""
        frame = self._codec.encode(message)
        try:
            with self._sending:
                self._sock.sendall(frame)
        except OSError as e:
            raise ChannelClosedError(str(e)) from None

    def receive(self) -> Any:
        """The next message. ChannelClosedError at end of stream, FrameError if it is not one."""
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

    def close(self) -> None:
        self._sock.close()


class AsyncChannel:
    """Event-loop side (the client). Sends keep their order; `send` waits when the peer reads slowly."""

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
        """The next message. ChannelClosedError at end of stream, FrameError if it is not one."""
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


__all__ = ["AsyncChannel", "Channel", "ChannelClosedError", "FrameError", "Listener"]
