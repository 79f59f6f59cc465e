"""A small HTTP client for load tests: streamed completions over kept connections, every piece timed as it arrives.

Times are taken where bytes arrive, before anything is decoded. A request costs a few microseconds per event, so the client does
not distort the measurement. Knows the OpenAI wire format, but no dataset and no statistics.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httptools
import orjson

from thalweg.errors import ConfigError

MAX_ERROR = 4096
"""Bytes kept of an answer without a stream."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where requests go."""

    host: str
    port: int
    path: str
    tls: ssl.SSLContext | None = None

    @property
    def authority(self) -> str:
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


@dataclass(slots=True)
class Outcome:
    """The outcome of one request. Times are seconds. `start` is on time.perf_counter's clock."""

    start: float
    ok: bool = False
    error: str = ""
    status: int = 0
    ttft: float = 0.0
    """Sent to first token."""
    itls: list[float] = field(default_factory=list)
    """Between one event with tokens and the next."""
    latency: float = 0.0
    """Sent to last token."""
    prompt_tokens: int = 0
    """Tokens as the server counts. 0 = it did not say."""
    output_tokens: int = 0
    text: str = ""

    @property
    def tpot(self) -> float:
        """Seconds per output token after the first. 0 if there is only one."""
        return (self.latency - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0


def address(base: str | None, host: str, port: int, path: str, *, insecure: bool) -> Address:
    """ConfigError naming the flag if the parts make no address."""
    if base is not None:
        parts = urlsplit(base)
        try:
            own = parts.port
        except ValueError:
            raise ConfigError(f"--base-url: {base!r}: the port must be a number below 65536") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--base-url: {base!r} must look like http://localhost:8000")
        tls = parts.scheme == "https"
        host, port, path = parts.hostname, own or (443 if tls else 80), parts.path.rstrip("/") + path
    else:
        tls = False
        if not 1 <= port <= 65535:
            raise ConfigError(f"--port: {port} must be between 1 and 65535")
    if insecure and not tls:
        raise ConfigError("--insecure: is for a --base-url that begins with https://")
    if not path.startswith("/") or any(c <= " " for c in path):
        raise ConfigError(f"--endpoint: {path!r} must begin with / and hold no spaces")
    context = None
    if tls:
        context = ssl.create_default_context()
        if insecure:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return Address(host, port, path, context)


class Client:
    """Connections to one server, kept and used again. Use inside one event loop. `close` ends them."""

    def __init__(self, to: Address, headers: Mapping[str, str], *, keep_text: bool = False) -> None:
        self._to, self._keep_text = to, keep_text
        lines = {"Host": to.authority, "Accept": "text/event-stream", "Content-Type": "application/json", **headers}
        for name, value in lines.items():
            if not name or any(c in "\r\n\0" for c in name + value) or ":" in name:
                raise ConfigError(f"--header: {name!r} is not a header name with a value of one line")
        self._head = "".join(f"{k}: {v}\r\n" for k, v in lines.items())
        self._idle: list[_Connection] = []

    async def stream(self, body: Mapping[str, Any], request_id: str = "") -> Outcome:
        """POST a completion or chat request and read its stream to the end. Failures are in the outcome, never raised."""
        data = orjson.dumps(body)
        extra = f"X-Request-Id: {request_id}\r\n" if request_id else ""
        head = f"POST {self._to.path} HTTP/1.1\r\n{self._head}{extra}Content-Length: {len(data)}\r\n\r\n"
        exchange = _Exchange(stream=True, keep_text=self._keep_text)
        try:
            await self._run(head.encode("latin-1") + data, exchange)
        except (OSError, ssl.SSLError) as e:
            exchange.fail(f"{type(e).__name__}: {e}")
        return exchange.outcome

    async def get(self, path: str) -> Any:
        """The JSON of a GET. OSError if there is no such server, ValueError if it answers otherwise."""
        exchange = _Exchange(stream=False)
        await self._run(f"GET {path} HTTP/1.1\r\n{self._head}\r\n".encode("latin-1"), exchange)
        if exchange.outcome.status != 200:
            raise ValueError(f"{path}: the server answers {exchange.outcome.status}: {bytes(exchange.rest[:200])!r}")
        return orjson.loads(bytes(exchange.rest))

    async def _run(self, request: bytes, exchange: _Exchange) -> None:
        exchange.outcome.start = time.perf_counter()
        connection = await self._connect()
        exchange.done = asyncio.get_running_loop().create_future()
        connection.begin(exchange)
        connection.transport.write(request)
        try:
            await exchange.done
        except BaseException:
            connection.transport.abort()  # cancelled in the middle of an answer: the server sees a disconnect
            raise
        if connection.reusable:
            self._idle.append(connection)
        else:
            connection.transport.close()

    async def _connect(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable:
                return connection
        to = self._to
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(_Connection, to.host, to.port, ssl=to.tls)
        return connection

    async def close(self) -> None:
        for connection in self._idle:
            connection.transport.close()
        self._idle.clear()
        await asyncio.sleep(0)


class _Connection(asyncio.Protocol):
    """One connection, with at most one exchange at a time."""

    transport: asyncio.Transport
    _exchange: _Exchange | None = None
    reusable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def begin(self, exchange: _Exchange) -> None:
        self._exchange = exchange
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        if self._exchange is None:
            self.reusable = False
            self.transport.close()  # unsolicited bytes
            return
        self._exchange.now = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, ValueError) as e:
            self._end(f"unexpected answer: {e}")

    def connection_lost(self, why: Exception | None) -> None:
        self.reusable = False
        if self._exchange is not None:
            self._end(f"the connection was closed before the answer ended{f' ({why})' if why else ''}")

    # What httptools calls.

    def on_headers_complete(self) -> None:
        assert self._exchange is not None
        self._exchange.outcome.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._exchange is not None:
            self._exchange.body(body)

    def on_message_complete(self) -> None:
        self.reusable = self.reusable and self._parser.should_keep_alive()
        self._end("")

    def _end(self, error: str) -> None:
        exchange, self._exchange = self._exchange, None
        if error:
            self.reusable = False
        if exchange is not None:
            exchange.end(error)


class _Exchange:
    """One request's answer, parsed as it arrives."""

    def __init__(self, *, stream: bool, keep_text: bool = False) -> None:
        self.outcome = Outcome(time.perf_counter())
        self.done: asyncio.Future[None] | None = None
        self.now = 0.0
        self.rest = bytearray()
        """An incomplete line, or the whole body of an answer without a stream."""
        self._stream, self._keep_text, self._last, self._finished = stream, keep_text, 0.0, False

    def body(self, piece: bytes) -> None:
        self.rest += piece
        if not self._stream or self.outcome.status != 200:
            return
        *lines, self.rest = self.rest.split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(bytes(line[5:]).strip())

    def _event(self, data: bytes) -> None:
        if data == b"[DONE]":
            self._finished = True
            return
        event = orjson.loads(data)
        if event.get("error"):
            self.fail(str(event["error"].get("message", event["error"])))
            return
        usage = event.get("usage")
        if usage:
            self.outcome.prompt_tokens, self.outcome.output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
        for choice in event.get("choices") or ():
            delta = choice.get("delta")
            text = choice.get("text") if delta is None else delta.get("content") or delta.get("reasoning_content")
            if text or (choice.get("finish_reason") and not self._last):  # an answer may be tokens without text
                self._token(text or "")

    def _token(self, text: str) -> None:
        o = self.outcome
        if self._last:
            o.itls.append(self.now - self._last)
        else:
            o.ttft = self.now - o.start
        self._last = self.now
        o.latency = self.now - o.start
        if self._keep_text:
            o.text += text

    def fail(self, error: str) -> None:
        self.outcome.error = self.outcome.error or error

    def end(self, error: str) -> None:
        o = self.outcome
        if error:
            self.fail(error)
        elif o.status != 200:
            self.fail(f"status {o.status}: {bytes(self.rest[:MAX_ERROR]).decode(errors='replace')}")
        elif self._stream and not self._finished:
            self.fail("the stream ended without [DONE]")
        elif self._stream and not self._last:
            self.fail("the answer held no token")
        o.ok = not o.error
        if o.ok and not o.output_tokens:
            o.output_tokens = len(o.itls) + 1
        if self.done is not None and not self.done.done():
            self.done.set_result(None)
