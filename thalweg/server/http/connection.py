"""A client's connection: bytes in, ASGI calls, bytes out, and every wait bounded. Replaces uvicorn's protocol.

Requests on a connection are served one at a time, in order. Bytes sent ahead wait unread (at most MAX_AHEAD). A client that
closes its side of the connection after a request still gets the answer (half close). A disconnect is noticed, also before the
first byte of the answer, and cancels the request. Knows no route.
"""

from __future__ import annotations

import asyncio
import logging
import select
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast
from urllib.parse import quote, unquote

import uvicorn
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from thalweg.server.errors import ApiError
from thalweg.server.http.crowd import ConnectionRegistry
from thalweg.server.http.exchange import STATUS_LINES, Exchange
from thalweg.server.http.wire import MAX_FIELDS, MAX_HEAD, BodyDecoder, Head, HttpRequestError, find_head, parse_head

log = logging.getLogger(__name__)
access = logging.getLogger("uvicorn.access")

HIGH_WATER = 32 * 1024
"""Bytes of an answer that wait in memory for the client before the application is paused."""
READ = 32 * 1024
"""Bytes read at a time: no more than this is read of a body that turns out to be too long."""
MAX_AHEAD = 1024 * 1024
"""Bytes a client may send ahead of the answer it waits for."""
LINGER = 1.0
"""Seconds a connection stays half open after an answer that came before the whole request was read. Further bytes are read and
dropped, so that a client that sends everything first can read the answer (RFC 9112, 9.6)."""
LINGER_PACE, LINGER_BYTES = 8 * 2**20, 64 * 2**20
"""Dropping this many bytes buys a client another second. No more than this many are dropped."""
PROBE_SECONDS = 1.0
"""Seconds that a connection beyond the limit has to ask for a probe."""
TOO_MANY = "too many connections"
LOOKS = (0.005, 0.02, 0.1)
"""Seconds between looks at whether a client that has ended its side is still there. The last is repeated."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Seconds, absolute: neither is prolonged by bytes that trickle in."""

    head_seconds: float = 10.0
    body_seconds: float = 60.0
    slow_seconds: float = 60.0
    """Seconds without any progress of an answer that waits for its reader."""
    crowd: ConnectionRegistry = field(default_factory=lambda: ConnectionRegistry(8192), repr=False)
    """All connections."""
    is_probe: Callable[[str], bool] = lambda path: False
    """Is it a probe's path? Probes are answered however many connections there are."""
    head_bytes: int = MAX_HEAD
    head_fields: int = MAX_FIELDS
    scratch: bytearray = field(default_factory=lambda: bytearray(READ), repr=False)
    """Buffer where bytes arrive, for all connections of an event loop. Each copies them before the next one reads."""


class Connection(asyncio.BufferedProtocol):
    """The signature is that uvicorn.Config(http=...) asks for, plus `limits`."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: ConnectionLimits,
    ) -> None:
        if not config.loaded:
            config.load()
        self._config, self._state, self._limits = config, server_state, limits
        self._loop = _loop or asyncio.get_event_loop()
        self._access = config.access_log and access.isEnabledFor(logging.INFO)
        self._buffer = bytearray()
        self._body: BodyDecoder | None = None
        self._exchange: Exchange | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._slow: asyncio.TimerHandle | None = None
        self._reading, self._eof, self._lingering = True, False, False
        self._dropped, self._linger_until = 0, 0.0
        self.writable = asyncio.Event()
        """Set while the client has read enough of the written bytes, or is gone."""
        self.writable.set()
        self._welcome = True
        """May it ask for anything, or for probes only?"""
        self.lost = False

    # ------------------------------------------------------------ asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport = cast(asyncio.Transport, transport)  # uvloop's are none of asyncio's classes
        self._client, self._server = get_remote_addr(transport), get_local_addr(transport)
        self._scheme = "https" if is_ssl(transport) else "http"
        self._state.connections.add(self)  # type: ignore[arg-type]
        transport.set_write_buffer_limits(high=HIGH_WATER)
        self._welcome = self._limits.crowd.enter(self, self._client[0] if self._client else "")
        self._deadline(self._limits.head_seconds if self._welcome else PROBE_SECONDS, self._head_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.connections.discard(self)
        self._limits.crowd.leave(self)
        self.lost = True
        for timer in (self._timer, self._slow):
            if timer is not None:
                timer.cancel()
        self._buffer.clear()
        self.writable.set()
        if self._exchange is not None:
            self._exchange.leave()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._limits.scratch

    def buffer_updated(self, nbytes: int) -> None:
        if self._lingering:
            self._drop(nbytes)
            return
        if self.transport.is_closing():
            return
        if not self._buffer and self._exchange is None:
            self._deadline(self._limits.head_seconds if self._welcome else PROBE_SECONDS, self._head_late)
        self._buffer += memoryview(self._limits.scratch)[:nbytes]
        try:
            self._advance()
        except HttpRequestError as e:
            self._refuse(e)

    def eof_received(self) -> bool:
        """The client will send no more. A complete request is answered. Otherwise there is nothing to wait for."""
        self._eof = True
        if self._lingering:
            return False
        if self._exchange is None or self._body is not None or self._scheme == "https" or self._exchange.upgraded:
            return False
        self._exchange.probe()
        self._look(0)
        return True

    def pause_writing(self) -> None:
        self.writable.clear()
        self._watch_slow(self.transport.get_write_buffer_size(), time.monotonic())

    def resume_writing(self) -> None:
        self.writable.set()
        if self._slow is not None:
            self._slow.cancel()

    def shutdown(self) -> None:
        """uvicorn: the server ends. Close when the answer under way is out."""
        if self._exchange is None:
            self.transport.close()
        else:
            self._exchange.keep_alive = False

    # ------------------------------------------------------------ requests

    def _advance(self) -> None:
        """Consume the buffer: the rest of a body, then the next request if none is being answered."""
        while True:
            if self._body is not None:
                assert self._exchange is not None
                self._exchange.give(self._body.take(self._buffer), self._body.done)
                if not self._body.done:
                    self._read(not self._exchange.waiting)  # no further than the application has read
                    return
                self._body = None
                self._limits.crowd.busy(self)
                self._deadline(0, None)
            if self._exchange is not None and self._exchange.upgraded:
                if self._buffer:
                    self._exchange.give(bytes(self._buffer), False)
                    self._buffer.clear()
                self._read(not self._exchange.waiting)
                return
            if self._exchange is not None:
                if len(self._buffer) > MAX_AHEAD:
                    log.info("connection closed: more than %d bytes sent ahead of an answer", MAX_AHEAD)
                    self.transport.abort()
                return
            while self._buffer.startswith(b"\r\n"):  # RFC 9112, 2.2: empty lines before a request are skipped
                del self._buffer[:2]
            size = find_head(self._buffer, self._limits.head_bytes)
            if size == 0:
                return
            raw = bytes(self._buffer[:size])
            del self._buffer[:size]
            self._begin(parse_head(raw, self._limits.head_fields))

    def _begin(self, head: Head) -> None:
        scope = self._scope(head)
        if not self._welcome:
            self._welcome = self._limits.crowd.admit(self)
        if not self._welcome:
            if not self._limits.is_probe(scope["path"]):
                raise HttpRequestError(503, TOO_MANY)
            head = replace(head, keep_alive=False)
        self._body = BodyDecoder(head.length)
        self._deadline(self._limits.body_seconds, self._body_late)
        self._exchange = Exchange(self, head, scope)
        task = self._loop.create_task(self._exchange.run(self._config.loaded_app))
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    def _scope(self, head: Head) -> dict[str, Any]:
        path, _, query = head.target.partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": f"1.{head.minor}",
            "server": self._server,
            "client": self._client,
            "scheme": self._scheme,
            "method": head.method,
            "root_path": self._config.root_path,
            "path": unquote(path.decode("ascii")),
            "raw_path": path,
            "query_string": query,
            "headers": head.headers,
            "state": {},
        }

    def wants_body(self) -> None:
        """The application waits for more of the body."""
        self._read(True)

    def answering(self, status: int) -> None:
        """An answer begins."""
        if self._access and self._exchange is not None:
            e = self._exchange
            client = f"{self._client[0]}:{self._client[1]}" if self._client else ""
            # Without the query: clients put secrets there. Quoted: a decoded path may hold line breaks and terminal escapes.
            path = quote(e.scope["path"])
            access.info('%s - "%s %s HTTP/%s" %d', client, e.scope["method"], path, e.scope["http_version"], status)

    def body_read(self) -> bool:
        """Has the whole request arrived? If not, the connection cannot be used again after the answer."""
        return self._body is None

    def finish_response(self) -> None:
        """The answer is out, or never will be."""
        self._state.total_requests += 1
        done, self._exchange = self._exchange, None
        if self.lost or done is None or self._lingering:
            return
        if self._body is not None or done.upgraded:
            self._linger()
        elif not done.keep_alive or self._eof:
            self.transport.close()
        elif self._buffer:
            self._limits.crowd.idle(self)
            self._deadline(self._limits.head_seconds, self._head_late)
            self._loop.call_soon(self.buffer_updated, 0)
        else:
            self._read(True)
            self._limits.crowd.idle(self)
            self._deadline(self._config.timeout_keep_alive, self._idle_late)

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        """Header fields of every answer."""
        return self._state.default_headers

    # ------------------------------------------------------------ bounds

    def _read(self, on: bool) -> None:
        if on == self._reading or self.transport.is_closing() or self._eof:
            return
        self._reading = on
        (self.transport.resume_reading if on else self.transport.pause_reading)()

    def _deadline(self, seconds: float, late: Callable[[], object] | None) -> None:
        """One deadline at a time: this one now."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, late) if late is not None else None

    def _idle_late(self) -> None:
        """The client has sent no request for long. A request may wait unread where the event loop was busy: closing would
        answer it with a reset."""
        if self._readable():
            self._deadline(self._limits.head_seconds, self._head_late)
        else:
            self.give_way()

    def give_way(self) -> None:
        """Close a connection without a whole request. One rejected for lack of a place gets an answer."""
        self._limits.crowd.leave(self)
        self._state.connections.discard(self)
        if not self._welcome and self._exchange is None and not (self._lingering or self.transport.is_closing()):
            self.transport.write(_refusal(HttpRequestError(503, TOO_MANY)))
        self.transport.close()

    def _readable(self) -> bool:
        """Does something wait to be read? A client that has closed its side counts: it is noticed when read."""
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def _head_late(self) -> None:
        if not self._welcome:
            self.give_way()
        elif self._buffer:
            self._refuse(HttpRequestError(408, f"no complete request within {self._limits.head_seconds:g} seconds"))
        else:
            self.transport.close()

    def _body_late(self) -> None:
        self._refuse(HttpRequestError(408, f"no complete body within {self._limits.body_seconds:g} seconds"))

    def _watch_slow(self, size: int, since: float) -> None:
        """While writing is paused: has the client taken anything lately?"""
        now, left = time.monotonic(), self.transport.get_write_buffer_size()
        if left < size:
            size, since = left, now
        if now - since >= self._limits.slow_seconds:
            log.info("connection closed: its client has taken nothing for %g seconds", self._limits.slow_seconds)
            self.transport.abort()
            return
        every = min(1.0, self._limits.slow_seconds / 4)
        self._slow = self._loop.call_later(every, self._watch_slow, size, since)

    def _look(self, i: int) -> None:
        """The client has ended its side. Nothing will be read any more, so ask whether it is gone altogether. Then a
        reset has met the probe (or the answer's next bytes)."""
        if self._exchange is None or self.lost:
            return
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), 0)
        if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
            self.transport.abort()
            return
        self._loop.call_later(LOOKS[min(i, len(LOOKS) - 1)], self._look, i + 1)

    def _refuse(self, e: HttpRequestError) -> None:
        """Answer an invalid or late request, and close. An answer in progress is cut instead."""
        if self.transport.is_closing() or self._lingering:
            return
        exchange = self._exchange
        if exchange is not None and exchange.started:
            self.transport.abort()
            return
        self.transport.write(_refusal(e))
        if exchange is not None:
            exchange.leave()
        self._linger(e.status != 408)

    def _linger(self, drop: bool = True) -> None:
        """Close without losing the answer: unread bytes would turn a plain close into a reset. drop: read further bytes."""
        self._lingering = True
        self._dropped, self._linger_until = 0, self._loop.time() + LINGER
        self._buffer.clear()
        self._body = None
        self._read(drop and self._welcome)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._deadline(LINGER, self.transport.abort)

    def _drop(self, nbytes: int) -> None:
        """Count dropped bytes."""
        self._dropped += nbytes
        left = self._linger_until + self._dropped / LINGER_PACE - self._loop.time()
        if self._dropped > LINGER_BYTES or left <= 0:
            self.transport.abort()
        else:
            self._deadline(min(LINGER, left), self.transport.abort)


def _refusal(e: HttpRequestError) -> bytes:
    body = ApiError(e.message, status=e.status).bytes()
    line = STATUS_LINES.get(e.status, b"HTTP/1.1 400 Bad Request\r\n")
    fields = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    return line + fields + body
