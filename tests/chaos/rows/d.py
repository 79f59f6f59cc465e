"""D: shutdown. A signal drains: accepted work finishes, readiness drops first, and the process ends when it said it would."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time

from chaosrig.context import Context, Row
from chaosrig.http import Answer, head, raw, split
from chaosrig.load import Stream, draw, together
from chaosrig.server import Probing, Server
from chaosrig.table import Figure, at_most, exactly, none_of
from chaosrig.truth import random_prompt

SLOW = {"base": 0.02}


async def _begun(streams: list[Stream], seconds: float = 10.0) -> None:
    """Wait until each has a token."""
    end = time.monotonic() + seconds
    while not all(s.tokens or s.ended for s in streams) and time.monotonic() < end:
        await asyncio.sleep(0.01)


async def d1(ctx: Context) -> list[Figure]:
    """D1: SIGTERM under streams."""
    rng, n = ctx.rng("D1"), ctx.size(30, 100)
    async with Server(knobs=SLOW) as server:
        streams = [draw(rng, rng.randrange(60, 120)) for _ in range(n)]
        async with Probing(server.port, "/readyz", interval=0.01) as probing:
            playing = asyncio.create_task(together(server.port, streams))
            await _begun(streams)
            told = time.monotonic()
            server.signal(signal.SIGTERM)
            await playing
        code = await server.exit(20)
        left = await server.remaining()
    late = [1000 * (t - told) for _, t, _, s in probing.seen if t >= told and s == 200]
    refused = [s for _, t, _, s in probing.seen if t >= told and s == 503]
    before = [f"/readyz {s} before the signal" for _, t, _, s in probing.seen if t < told and s != 200]
    return [
        none_of("D1", "truncated streams", [b for s in streams if (b := s.broken())], n),
        at_most("D1", "last ready after the signal (ms)", 100, max(late, default=0.0), len(probing.seen)),
        exactly(
            "D1", "/readyz says 503 while draining", True, bool(refused) and not before, len(probing.seen), str(before[:1])
        ),
        exactly("D1", "exit status", 0, code, 1),
        none_of("D1", "processes left", left, 1),
    ]


async def d2(ctx: Context) -> list[Figure]:
    """Streams longer than the deadline."""
    rng, deadline = ctx.rng("D2"), 2
    async with Server(knobs=SLOW, shutdown_timeout=deadline) as server:
        streams = [draw(rng, 1500) for _ in range(ctx.size(10, 50))]
        playing = asyncio.create_task(together(server.port, streams))
        await _begun(streams)
        told = time.monotonic()
        server.signal(signal.SIGTERM)
        code = await server.exit(deadline + 10)
        took = time.monotonic() - told
        await playing
    mute = [f"{s.ended}: {s.error}" for s in streams if s.ended != "error" or not (s.error or {}).get("code")]
    wrong = [w for s in streams if (w := s.wrong())]
    return [
        none_of("D2", "streams without a terminal error event with a code", mute, len(streams)),
        none_of("D2", "wrong tokens until then", wrong, len(streams)),
        at_most("D2", "exit after the deadline (s)", 1, took - deadline, 1),
        exactly("D2", "exit status", 0, code, 1),
    ]


async def d3(ctx: Context) -> list[Figure]:
    """A second signal during the drain."""
    rng, slowest, left, runs = ctx.rng("D3"), 0.0, [], ctx.size(2, 12)
    for i in range(runs):
        async with Server(knobs=SLOW, shutdown_timeout=60) as server:
            streams = [draw(rng, 1500) for _ in range(8)]
            playing = asyncio.create_task(together(server.port, streams))
            await _begun(streams)
            server.signal(signal.SIGTERM)
            await asyncio.sleep(rng.uniform(0.05, 0.5))
            if server.process is not None and server.process.poll() is not None:
                left.append("ended at the first signal although streams were open")
            told = time.monotonic()
            with contextlib.suppress(ProcessLookupError):
                server.signal((signal.SIGTERM, signal.SIGINT)[i % 2])
            await server.exit(20)
            slowest = max(slowest, time.monotonic() - told)
            left += [f"process {p}" for p in await server.remaining()] + server.left_behind()
            await playing
    return [
        at_most("D3", "seconds from the second signal to the exit", 2, slowest, runs),
        none_of("D3", "leftovers", left, runs),
    ]


async def d4(ctx: Context) -> list[Figure]:
    """New requests while draining, on a kept-alive connection and on new ones."""
    rng = ctx.rng("D4")
    async with Server(knobs=SLOW, shutdown_timeout=20) as server:
        streams = [draw(rng, 150) for _ in range(8)]
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        body = Stream(random_prompt(rng, 5), 2, {"stream": False, "return_token_ids": False}).body()
        request = head("POST", "/v1/completions", length=len(body)) + body
        first = await _one(reader, writer, request)
        playing = asyncio.create_task(together(server.port, streams))
        await _begun(streams)
        server.signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        kept = await _one(reader, writer, request)
        writer.close()
        fresh = []
        for _ in range(5):
            said, how = await raw(server.port, request, timeout=3, until_answer=True)
            fresh.append((split(said) or [Answer(error=how or "closed")])[0])
        await playing
        code = await server.exit(20)
    every = [kept, *fresh]
    other = [f"{a.status or a.error}" for a in every if a.status != 503]
    retry = [a for a in every if "retry-after" not in a.headers]
    close = [a for a in every if a.headers.get("connection", "").lower() != "close"]
    note = f"kept-alive: {kept.status or kept.error}, new: {[a.status or a.error for a in fresh]}"
    return [
        exactly("D4", "status before the signal", 200, first.status, 1),
        none_of("D4", "answers other than 503", other, len(every), note),
        none_of("D4", "without Retry-After", retry and [note], len(every)),
        none_of("D4", "without Connection: close", close and [note], len(every)),
        none_of("D4", "accepted streams truncated", [b for s in streams if (b := s.broken())], len(streams)),
        exactly("D4", "exit status", 0, code, 1),
    ]


async def _one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> Answer:
    """One request on an open connection."""
    said = b""
    try:
        async with asyncio.timeout(3):
            writer.write(request)
            while piece := await reader.read(1 << 16):
                said += piece
                answers = split(said)
                if answers and len(answers[0].body) >= int(answers[0].headers.get("content-length", "0")):
                    return answers[0]
    except TimeoutError:
        return Answer(error="timeout")
    except OSError as e:
        return Answer(error=f"connection: {e.strerror}")
    return Answer(error="closed without an answer")


async def d5(ctx: Context) -> list[Figure]:
    """SIGTERM at points of the loading."""
    slowest, left, codes, points = 0.0, [], [], ctx.size(4, 10)
    for i in range(points):
        server = Server(knobs=SLOW)
        try:
            server.launch()
            await asyncio.sleep(0.05 + 1.0 * i / points)
            told = time.monotonic()
            server.signal(signal.SIGTERM)
            codes.append(await server.exit(15))
            slowest = max(slowest, time.monotonic() - told)
            left += [f"process {p} (point {i})" for p in await server.remaining()] + server.left_behind()
        finally:
            server.end()
    # Before Python has put a handler in place, the signal's own effect is the exit.
    odd = [f"point {i}: {c}" for i, c in enumerate(codes) if c not in (0, -signal.SIGTERM)]
    return [
        at_most("D5", "seconds to the exit", 2, slowest, points),
        none_of("D5", "processes or files left", left, points),
        none_of("D5", "odd exit statuses", odd, points),
    ]


ROWS = (Row(("D1",), d1), Row(("D2",), d2), Row(("D3",), d3), Row(("D4",), d4), Row(("D5",), d5))
