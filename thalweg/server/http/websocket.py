"""WebSockets (RFC 6455): the handshake, and messages in both directions. Frames are those of the package `websockets`, without
extensions: a compressed message could be far longer than its bytes."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from thalweg.server.errors import ApiError

VERSION = "13"
NORMAL, AWAY, POLICY, BROKEN = 1000, 1001, 1008, 1011
"""Codes that end a connection."""
FAREWELL = 2.0
"""Seconds for the client's answer to the end."""


class WebSocketClosedError(Exception):
    """The client has ended the connection, or is gone."""


class WebSocket:
    """An open connection. One task reads. Others may write: a message waits until earlier ones have left the process."""

    def __init__(self, receive: Receive, send: Send, most: int) -> None:
        """most: bytes of a client's message. A longer one ends the connection."""
        from websockets.frames import Opcode
        from websockets.protocol import OPEN, SERVER, Protocol

        self._open = OPEN

        self._receive, self._send, self._turn = receive, send, asyncio.Lock()
        self._frames, self._codes = Protocol(SERVER, state=OPEN, max_size=most), Opcode
        self._parts: list[bytes] = []
        self._waiting: list[Any] = []

    async def read(self) -> bytes:
        """The next message, text or binary. WebSocketClosedError."""
        while True:
            while self._waiting:
                frame = self._waiting.pop(0)
                if frame.opcode is self._codes.CLOSE:
                    raise WebSocketClosedError
                if frame.opcode not in (self._codes.TEXT, self._codes.BINARY, self._codes.CONT):
                    continue
                self._parts.append(bytes(frame.data))
                if frame.fin:
                    message, self._parts = b"".join(self._parts), []
                    return message
            arrived = await self._receive()
            if arrived["type"] != "http.request":
                raise WebSocketClosedError
            if arrived["body"]:
                self._frames.receive_data(arrived["body"])
                self._waiting += self._frames.events_received()
                await self._flush()
                if self._frames.parser_exc is not None:  # an invalid frame, or a message too long
                    raise WebSocketClosedError

    async def write(self, text: bytes) -> None:
        """Send a text message. WebSocketClosedError."""
        if self._frames.state is not self._open:
            raise WebSocketClosedError
        self._frames.send_text(text)
        await self._flush()

    async def close(self, code: int = NORMAL, reason: str = "") -> None:
        """End the connection, and wait a moment for the client's consent."""
        if self._frames.state is self._open:
            self._frames.send_close(code, reason)
            await self._flush()
            try:
                async with asyncio.timeout(FAREWELL):
                    while True:
                        await self.read()
            except (WebSocketClosedError, TimeoutError):
                pass

    async def _flush(self) -> None:
        data = b"".join(self._frames.data_to_send())
        async with self._turn:
            if data:
                await self._send({"type": "http.response.body", "body": data, "more_body": True})


class WebSocketResponse(Response):
    """The answer that turns a request into a WebSocket, and the conversation on it."""

    def __init__(self, http: Request, work: Callable[[WebSocket], Awaitable[None]], most: int) -> None:
        """work: the conversation. The connection ends with it. most: as of `WebSocket`."""
        super().__init__(status_code=101)
        self._key, self._work, self._most = http.headers["sec-websocket-key"], work, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from websockets.utils import accept_key

        answer = [(b"upgrade", b"websocket"), (b"sec-websocket-accept", accept_key(self._key).encode())]
        await receive()  # the request's body, which is empty
        await send({"type": "http.response.start", "status": 101, "headers": answer})
        connection = WebSocket(receive, send, self._most)
        try:
            await self._work(connection)
            await connection.close()
        except WebSocketClosedError:
            pass
        finally:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def check_handshake(http: Request, origins: Collection[str]) -> None:
    """ApiError where a request opens no WebSocket, or comes from a page of another origin: no preflight precedes it.
    origins: those of --allowed-origins."""
    try:
        import websockets  # noqa: F401
    except ImportError:
        raise ApiError("this route needs the package websockets: pip install 'thalweg[realtime]'", status=501) from None
    headers = http.headers
    tokens = {token.strip().lower() for token in headers.get("connection", "").split(",")}
    old = http.scope["http_version"] == "1.0"
    if old or headers.get("upgrade", "").lower() != "websocket" or "upgrade" not in tokens:
        raise ApiError("this route speaks WebSocket: connect with ws:// or wss://", status=426)
    if headers.get("sec-websocket-version") != VERSION:
        raise ApiError(f"sec-websocket-version: must be {VERSION}", status=426)
    try:
        key = base64.b64decode(headers.get("sec-websocket-key", ""), validate=True)
    except binascii.Error:
        key = b""
    if len(key) != 16:
        raise ApiError("sec-websocket-key: must be 16 bytes in base64", status=400)
    origin = headers.get("origin")
    foreign = origin is not None and origin.partition("://")[2] != headers.get("host", "")
    if foreign and "*" not in origins and origin not in origins:
        raise ApiError(
            "pages of other origins may not use this server; start it with --allowed-origins to let them", status=403
        )
