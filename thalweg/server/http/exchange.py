"""One request and its answer, between a connection and the application: ASGI's `receive` and `send`."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from thalweg.server.http.wire import Head

if TYPE_CHECKING:
    from thalweg.server.http.connection import Connection

log = logging.getLogger(__name__)

STATUS_LINES = {s.value: b"HTTP/1.1 %d %s\r\n" % (s.value, s.phrase.encode()) for s in HTTPStatus}
"""The first line of an answer, by status."""


class Exchange:
    """One request and its answer: the two ASGI callables."""

    def __init__(self, connection: Connection, head: Head, scope: dict[str, Any]) -> None:
        self._connection, self.scope = connection, scope
        self.keep_alive, self._expects = head.keep_alive, head.expects
        self._bare, self._http10 = head.method == "HEAD", head.minor == 0
        self._pieces: list[bytes] = []
        self.waiting = 0
        """Bytes of the body the application has not taken."""
        self._more, self._changed = True, asyncio.Event()
        self._gone, self.started, self._complete = False, False, False
        self._chunked = False
        self._left: int | None = None
        """Bytes of the body that content-length promises and that are not sent yet. None: it promises none."""
        self.upgraded = False
        """Do both sides speak another protocol from now on? Bytes are passed on as they come."""

    def give(self, piece: bytes, done: bool) -> None:
        if piece:
            self._pieces.append(piece)
            self.waiting += len(piece)
        if piece or done:
            self._more = not done
            self._changed.set()

    def leave(self) -> None:
        """The client is gone, or gets no other answer."""
        self._gone = True
        self._changed.set()

    def probe(self) -> None:
        """Send bytes without meaning: a disconnected client's system answers with a reset. Once the answer has begun, its bytes
        do this."""
        if not self.started and not self._http10:
            self._connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def run(self, app: Any) -> None:
        try:
            await app(self.scope, self.receive, self.send)
            if not self._complete and not self._gone:
                log.error("an answer was left unfinished")
                self._connection.transport.abort()
        except BaseException as e:  # the application answers its own errors, and this is the last net
            self._connection.transport.abort()
            if not isinstance(e, Exception):
                raise
            log.error("request failed", exc_info=e)
        finally:
            if not self._complete:
                self._connection.finish_response()

    async def receive(self) -> dict[str, Any]:
        if self._expects and not self.started and not self._gone:
            self._expects = False
            self._connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not self._changed.is_set() and not self._complete:
            self._connection.wants_body()
        if not self._complete:
            await self._changed.wait()
            self._changed.clear()
        if self._gone or self._complete:
            self._changed.set()
            return {"type": "http.disconnect"}
        body, self._pieces, self.waiting = b"".join(self._pieces), [], 0
        return {"type": "http.request", "body": body, "more_body": self._more}

    async def send(self, message: Any) -> None:
        if not self._connection.writable.is_set():
            await self._connection.writable.wait()
        if self._gone:
            await asyncio.sleep(0)  # a writer that never stops must notice the cancellation
            return
        if message["type"] == "http.response.start":
            self._start(message["status"], list(message.get("headers", ())))
        elif message["type"] == "http.response.body" and not self._complete:
            self._write(message.get("body", b""), message.get("more_body", False))
        else:
            raise RuntimeError(f"unexpected ASGI message {message['type']}")

    def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.started, self._expects = True, False
        self._connection.answering(status)
        if not self._connection.body_read():
            self.keep_alive = False
        if status == 101:
            self._upgrade(headers)
            return
        lines, length = [STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status], None
        for name, value in [*self._connection.default_headers, *headers]:
            if b"\r" in value or b"\n" in value or b"\0" in value:
                raise RuntimeError(f"header field {name!r} holds a line break")
            if name == b"connection":
                self.keep_alive = self.keep_alive and value.lower() != b"close"
                continue
            if name == b"content-length":
                length = int(value)
            lines.append(name + b": " + value + b"\r\n")
        bare = self._bare or status in (204, 304)
        self._left = None if bare else length
        self._chunked = length is None and not bare and not self._http10
        if self._chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        if length is None and not bare and self._http10:
            self.keep_alive = False
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        self._connection.transport.write(b"".join(lines))

    def _upgrade(self, headers: list[tuple[bytes, bytes]]) -> None:
        """headers: they name the protocol."""
        self.upgraded, self.keep_alive = True, False
        fields = [*self._connection.default_headers, *headers, (b"connection", b"Upgrade")]
        lines = [name + b": " + value + b"\r\n" for name, value in fields]
        self._connection.transport.write(b"".join([STATUS_LINES[101], *lines, b"\r\n"]))

    def _write(self, body: bytes, more: bool) -> None:
        if self._bare:
            body = b""
        if self._chunked:
            tail = b"" if more else b"0\r\n\r\n"
            body = b"%x\r\n%b\r\n%b" % (len(body), body, tail) if body else tail
        elif self._left is not None:
            self._left -= len(body)
            if self._left < 0 or (self._left and not more):  # the client would wait for the rest, or read a wrong response
                raise RuntimeError(f"the body differs from content-length by {-self._left} bytes")
        if body:
            self._connection.transport.write(body)
        if not more:
            self._complete = True
            self._changed.set()
            self._connection.finish_response()
