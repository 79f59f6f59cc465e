"""Streaming completions from many clients at once, each token compared with the oracle. The client's side of every promise."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from socket import SO_LINGER, SOL_SOCKET
from typing import Any

import orjson
from chaosrig.http import head
from chaosrig.truth import continuation, random_prompt, text_of


@dataclass(slots=True)
class Stream:
    """One request and what came of it.

    ended: "done" (finish reason and [DONE] came), "refused" (another status than 200), "error" (an SSE error event), "aborted"
    (by the rig), "cut" (closed without an end), "reset", "timeout", "unreachable".
    """

    prompt: list[int]
    n: int
    extra: dict[str, Any] = field(default_factory=dict)
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish: str | None = None
    error: Any = None
    ended: str = ""
    start: float = 0.0
    first: float = 0.0
    last: float = 0.0
    times: list[float] = field(default_factory=list)
    """When each event with tokens came (monotonic)."""

    @property
    def ttft(self) -> float:
        return self.first - self.start

    def body(self) -> bytes:
        fields = {
            "prompt": self.prompt, "max_tokens": self.n, "stream": True, "ignore_eos": True, "return_token_ids": True,
            "temperature": 0, **self.extra,
        }  # fmt: skip
        return orjson.dumps(fields)

    def wrong(self) -> str | None:
        """None if every token that came is the right one in the right place, all of them if it is done, and so the text."""
        right = continuation(self.prompt, self.n)
        if self.tokens != right[: len(self.tokens)]:
            at = next((i for i, (a, b) in enumerate(zip(self.tokens, right, strict=False)) if a != b), len(right))
            return f"token {at} of {self.n} differs: {self.tokens[at : at + 3]} for {right[at : at + 3]}"
        if self.ended == "done":
            if len(self.tokens) != self.n:
                return f"{len(self.tokens)} tokens of {self.n}"
            if self.finish != "length":
                return f"finish_reason {self.finish}"
            if self.text != text_of(right):
                return f"text differs: {self.text[-30:]!r} for {text_of(right)[-30:]!r}"
        return None

    def broken(self) -> str | None:
        """None if it is done and right."""
        if self.ended != "done":
            return f"{self.ended} after {len(self.tokens)} of {self.n} tokens (status {self.status}, {self.error})"[:200]
        return self.wrong()


def draw(rng: random.Random, n: int, length: int = 12, **extra: Any) -> Stream:
    """A request with a random prompt; every other one asks for seeded sampling instead of greedy."""
    if rng.random() < 0.5:
        extra = {"temperature": 1.0, "seed": rng.randrange(2**31)} | extra
    return Stream(random_prompt(rng, length), n, extra)


async def play(
    port: int,
    stream: Stream,
    *,
    abort_after: int | None = None,
    reset: bool = True,
    timeout: float = 60.0,
    headers: dict[str, str] | None = None,
    hold: asyncio.Event | None = None,
) -> Stream:
    """Carry `stream` through. abort_after: go away after so many tokens (0: at once when the request is sent), by RST or FIN.
    hold: is set when the answer's head has come."""
    body = stream.body()
    stream.start = time.monotonic()
    writer = None
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head("POST", "/v1/completions", {"Connection": "close"} | (headers or {}), len(body)) + body)
            await writer.drain()
            if abort_after == 0:
                stream.ended = "aborted"
            else:
                await read_answer(reader, stream, abort_after, hold)
    except TimeoutError:
        stream.ended = "timeout"
    except (OSError, asyncio.IncompleteReadError) as e:
        stream.ended = "reset" if stream.status or writer else "unreachable"
        stream.error = str(e)
    finally:
        if writer is not None:
            if stream.ended == "aborted" and reset:
                rst(writer)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    return stream


def rst(writer: asyncio.StreamWriter) -> None:
    """Make the next close an RST."""
    sock = writer.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def read_answer(
    reader: asyncio.StreamReader, stream: Stream, abort_after: int | None = None, hold: asyncio.Event | None = None
) -> None:
    """Read what the server says into `stream`, up to its end or until `abort_after` tokens have come."""
    stream.status = 100
    while stream.status == 100:  # interim: a server may say it to anyone who speaks HTTP/1.1
        top = await reader.readuntil(b"\r\n\r\n")
        first, *lines = top[:-4].decode("latin-1").split("\r\n")
        stream.status = int(first.split()[1])
    stream.headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    if hold is not None:
        hold.set()
    if stream.status != 200:
        stream.last = time.monotonic()
        rest = await reader.read()
        with contextlib.suppress(orjson.JSONDecodeError):
            stream.error = orjson.loads(rest)
        stream.ended = "refused"
        return
    async for event in _events(reader):
        if event == b"[DONE]":
            stream.ended = "done" if stream.error is None and stream.finish else "error"
            return
        _take(stream, orjson.loads(event))
        if abort_after is not None and len(stream.tokens) >= abort_after:
            stream.ended = "aborted"
            return
    stream.ended = "cut" if stream.error is None else "error"


async def _events(reader: asyncio.StreamReader) -> Any:
    """The data of each event, out of chunks of any size."""
    raw, body = bytearray(), bytearray()
    while piece := await reader.read(1 << 16):
        raw += piece
        while True:
            end = raw.find(b"\r\n")
            if end < 0:
                break
            size = int(raw[:end] or b"0", 16)
            if size == 0 or len(raw) < end + size + 4:
                break
            body += raw[end + 2 : end + 2 + size]
            del raw[: end + size + 4]
        *events, rest = body.split(b"\n\n")
        body = bytearray(rest)
        for event in events:
            if event.startswith(b"data: "):
                yield bytes(event[6:])


def _take(stream: Stream, event: dict[str, Any]) -> None:
    if "error" in event:
        stream.error = event["error"]
        return
    for choice in event["choices"]:
        ids = choice.get("token_ids")
        if ids:
            stream.tokens += ids
            stream.last = time.monotonic()
            stream.first = stream.first or stream.last
            stream.times.append(stream.last)
        stream.text += choice["text"]
        stream.finish = choice["finish_reason"] or stream.finish


# ------------------------------------------------------------------ many


async def together(port: int, streams: Sequence[Stream], **options: Any) -> list[Stream]:
    return await asyncio.gather(*(play(port, s, **options) for s in streams))


class Crowd:
    """`size` clients, each asking again as soon as it is answered, until told to stop; then the last answers are awaited."""

    def __init__(self, port: int, size: int, rng: random.Random, n: tuple[int, int], **options: Any) -> None:
        self.finished: list[Stream] = []
        self.open: set[int] = set()
        self._live: dict[int, Stream] = {}
        self._stop = asyncio.Event()
        seeds = [rng.randrange(2**31) for _ in range(size)]
        self._tasks = [asyncio.create_task(self._client(port, i, random.Random(s), n, options)) for i, s in enumerate(seeds)]

    async def _client(self, port: int, i: int, rng: random.Random, n: tuple[int, int], options: dict[str, Any]) -> None:
        while not self._stop.is_set():
            stream = self._live[i] = draw(rng, rng.randrange(*n), rng.randrange(1, 40))
            await play(port, stream, **options)
            self.finished.append(stream)
            if stream.ended in ("refused", "unreachable"):
                await asyncio.sleep(0.05)

    def live(self) -> list[Stream]:
        return [s for s in self._live.values() if not s.ended]

    def newest(self) -> float:
        """When the latest token came to anyone."""
        return max((s.last for s in [*self.finished[-len(self._tasks) :], *self._live.values()]), default=0.0)

    async def stop(self) -> list[Stream]:
        self._stop.set()
        await asyncio.gather(*self._tasks)
        return self.finished


@dataclass(slots=True)
class Window:
    """What an open-loop load brought: streams by arrival, whatever came of them."""

    streams: list[Stream]
    seconds: float

    @property
    def good(self) -> list[Stream]:
        return [s for s in self.streams if s.ended == "done"]

    @property
    def refused(self) -> list[Stream]:
        return [s for s in self.streams if s.ended == "refused"]


async def poisson(
    port: int, rate: float, seconds: float, rng: random.Random, n: int, length: int = 8, **options: Any
) -> Window:
    """Arrivals at `rate` per second whatever the answers (open loop), then all answers."""
    tasks, streams = [], []
    start = due = time.monotonic()
    while due - start < seconds:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        stream = draw(rng, n, length)
        streams.append(stream)
        tasks.append(asyncio.create_task(play(port, stream, **options)))
        due += rng.expovariate(rate)
    await asyncio.gather(*tasks)
    return Window(streams, seconds)
