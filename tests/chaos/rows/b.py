"""B: soak. Requests aborted at random points leave no block, no request, no descriptor, no thread and no child behind."""

from __future__ import annotations

import asyncio
import random
import time

from chaosrig import proc
from chaosrig.context import Context, Row
from chaosrig.load import Stream, draw, play
from chaosrig.proxy import Faults, Proxy
from chaosrig.server import Server
from chaosrig.table import Figure, at_least, at_most, none_of
from test_random_worlds import aborted_load

WARM = 300
"""Requests before the first sample: pools and caches fill."""
LATE = 3.0
"""Seconds after the start when an engine knows the vocabulary, and has the thread that compiles grammars."""


async def b1(ctx: Context) -> list[Figure]:
    """B1 and B3: first the core alone, then a live server under clients that go away, a few of them behind a bad line."""
    n = ctx.size(2_000, 100_000)
    world = await asyncio.to_thread(aborted_load, n)  # AssertionError at the first wrong token, leaked block or reference
    aborted = sum(t.finished == "abort" for t in world.tracked.values())
    figures = [
        none_of("B1", "core: wrong tokens, leaked blocks, reference errors", [], n),
        at_least("B1", "core: requests aborted while open", 0.1 * n, aborted, n),
    ]
    return figures + await _through_server(ctx, ctx.size(2_000, 40_000))


async def _through_server(ctx: Context, n: int) -> list[Figure]:
    rng = ctx.rng("B1")
    async with Server(max_num_seqs=64, num_gpu_blocks_override=400) as server:
        faults = Faults(slices=700, latency=0.001)
        async with Proxy(server.port, down=faults, seed=ctx.seed) as proxy:
            await _soak(server.port, proxy.port, WARM, rng)
            await asyncio.sleep(LATE)
            left = await server.idle()
            before = _samples(server)
            start = time.monotonic()
            streams = await _soak(server.port, proxy.port, n, rng)
            rate = n / (time.monotonic() - start)
        left = await server.idle()
        await asyncio.sleep(0.3)  # closed sockets are let go
        after = _samples(server)
    wrong = [b for s in streams if s.ended != "aborted" and (b := s.broken())]
    wrong += [w for s in streams if s.ended == "aborted" and (w := s.wrong())]
    aborted = sum(s.ended == "aborted" for s in streams)
    grown = {
        what: [getattr(b, what) - getattr(a, what) for a, b in zip(before, after, strict=True)] for what in ("fds", "threads")
    }
    rss = sum(b.rss - a.rss for a, b in zip(before, after, strict=True)) / 1e6 / (n / 10_000)
    return [
        none_of("B1", "server: wrong, lost or doubled tokens", wrong, n, f"{rate:.0f} requests/s"),
        at_least("B1", "server: requests aborted", 0.2 * n, aborted, n),
        none_of("B1", "server: blocks or requests left", [left] if any(left.values()) else [], n),
        at_most("B3", "descriptors grown", 0, max(grown["fds"]), n),
        at_most("B3", "threads grown", 0, max(grown["threads"]), n),
        at_most("B3", "children grown", 0, len(after) - len(before), n),
        at_most(
            "B3", "RSS growth (MB per 10000 requests)", ctx.size(150, 10), rss, n, note="the allocator settles in a short run"
        ),
    ]


def _samples(server: Server) -> list[proc.Sample]:
    """Of the server and its engine; a process that stands by comes and goes."""
    return [proc.sample(pid) for pid in (server.pid, server.engine_pid()) if pid]


async def _soak(port: int, bad_line: int, n: int, rng: random.Random) -> list[Stream]:
    """n requests from 48 clients, three in ten of which go away at a random point, by RST or by FIN."""
    todo, done = iter(range(n)), []
    stems = [draw(rng, 1, 48).prompt for _ in range(6)]

    async def client(rng: random.Random) -> None:
        for i in todo:
            n = rng.choice((1, 4, 16, rng.randrange(1, 60)))
            prompt = rng.choice(stems)[: rng.randrange(49)] + draw(rng, 1, rng.randrange(1, 24)).prompt
            leave = rng.randrange(n) if rng.random() < 0.3 else None
            stream = Stream(prompt, n)
            await play(bad_line if i % 50 == 0 else port, stream, abort_after=leave, reset=rng.random() < 0.7)
            done.append(stream)

    await asyncio.gather(*(client(random.Random(rng.randrange(2**31))) for _ in range(48)))
    return done


ROWS = (Row(("B1", "B3"), b1),)
