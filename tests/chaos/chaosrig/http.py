"""A raw HTTP client: says exactly the bytes it is given, and tells what came back and when. Never repairs anything."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Answer:
    """status 0: no answer; `error` says how it ended."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    seconds: float = 0.0
    error: str = ""

    def json(self) -> Any:
        return json.loads(self.body)

    def message(self) -> str:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return str(self.json()["error"]["message"])
        return self.body[:200].decode(errors="replace")


def head(method: str, path: str, headers: dict[str, str] | None = None, length: int | None = None) -> bytes:
    """A request up to its body."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1"]
    if length is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {length}"]
    lines += [f"{k}: {v}" for k, v in (headers or {}).items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def ask(
    port: int, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, timeout: float = 20.0
) -> Answer:
    """One request on a connection of its own. body: bytes as they are, anything else as JSON."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"Connection": "close"} | (headers or {})
    message = head(method, path, sent, len(data) if body is not None else None) + data
    start = time.monotonic()
    said, how = await raw(port, message, timeout=timeout, until_answer=True)
    answers = split(said)
    answer = answers[0] if answers else Answer(error=how or "closed without an answer")
    answer.seconds = time.monotonic() - start
    return answer


async def raw(
    port: int, data: bytes, *, timeout: float = 5.0, until_answer: bool = False, half_close: bool = False
) -> tuple[bytes, str]:
    """All the server says until it closes, and how it ended: "" closed, "reset", "timeout", "answered" (the
    first answer is whole and `until_answer` is set), or why there was no connection."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError as e:
        return b"", f"no connection: {e.strerror}"
    said = bytearray()
    try:
        async with asyncio.timeout(timeout):
            sending = asyncio.create_task(_send(writer, data, half_close))
            try:
                while piece := await reader.read(1 << 16):
                    said += piece
                    if until_answer and whole(bytes(said)):
                        return bytes(said), "answered"
            finally:
                sending.cancel()
        return bytes(said), ""
    except TimeoutError:
        return bytes(said), "timeout"
    except OSError:
        return bytes(said), "reset"
    finally:
        writer.close()


async def _send(writer: asyncio.StreamWriter, data: bytes, half_close: bool) -> None:
    with contextlib.suppress(OSError):  # a server may refuse before it has read everything
        for at in range(0, len(data), 1 << 18):
            writer.write(data[at : at + (1 << 18)])
            await writer.drain()
        if half_close:
            writer.write_eof()


def whole(said: bytes) -> bool:
    """Is the first answer complete?"""
    return _take(said)[1] >= 0


def split(said: bytes) -> list[Answer]:
    """The answers in what a server said; the last one may be cut short."""
    out = []
    while said:
        answer, used = _take(said)
        if answer is None:
            break
        out.append(answer)
        said = said[used:] if used >= 0 else b""
    return out


def _take(said: bytes) -> tuple[Answer | None, int]:
    """(the first answer, the bytes it takes; -1 if it is cut short)."""
    top, found, rest = said.partition(b"\r\n\r\n")
    if not found or not top.startswith(b"HTTP/1."):
        return None, -1
    first, *lines = top.decode("latin-1").split("\r\n")
    headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    answer = Answer(int(first.split()[1]), headers, rest)
    if answer.status == 100:
        after, used = _take(rest)
        return after, used + len(top) + 4 if used >= 0 else -1
    if "content-length" in headers:
        n = int(headers["content-length"])
        answer.body = rest[:n]
        return answer, len(top) + 4 + n if len(rest) >= n else -1
    if headers.get("transfer-encoding") == "chunked":
        answer.body, used = dechunk(rest)
        return answer, len(top) + 4 + used if used >= 0 else -1
    bodyless = answer.status in (204, 304)
    return answer, len(top) + 4 if bodyless else -1


def dechunk(data: bytes) -> tuple[bytes, int]:
    """(the body so far, the bytes a complete one takes; -1 if the last chunk is missing)."""
    body, at = bytearray(), 0
    while True:
        end = data.find(b"\r\n", at)
        if end < 0:
            return bytes(body), -1
        size = int(data[at:end].split(b";")[0] or b"0", 16)
        at = end + 2
        if size == 0:
            return bytes(body), at + 2
        if len(data) < at + size + 2:
            return bytes(body + data[at : at + size]), -1
        body += data[at : at + size]
        at += size + 2
