"""A: load. Many streams, overload, huge prompts, long beside short: health and fairness hold, and every token is right."""

from __future__ import annotations

import asyncio
import statistics
import time

from chaosrig import proc
from chaosrig.context import Context, Row
from chaosrig.http import ask
from chaosrig.load import Crowd, Stream, draw, play, poisson, together
from chaosrig.server import Probing, Server
from chaosrig.table import Figure, at_least, at_most, none_of, percentile
from chaosrig.truth import random_prompt

OVERLOADED = {"base": 0.02}
"""With 8 sequences of 16 tokens: 25 requests a second, whatever the machine."""


async def a1(ctx: Context) -> list[Figure]:
    """1000 streams at once."""
    rng, n = ctx.rng("A1"), 1000
    streams = [draw(rng, ctx.size(24, 200)) for _ in range(n)]
    answered = [asyncio.Event() for _ in streams]
    async with Server(knobs={"base": 0.05}, max_num_seqs=1024) as server:
        playing = [
            asyncio.create_task(play(server.port, s, hold=e, timeout=90)) for s, e in zip(streams, answered, strict=True)
        ]
        held = 0
        while not all(t.done() for t in playing):
            held = max(held, sum(e.is_set() and not t.done() for e, t in zip(answered, playing, strict=True)))
            await asyncio.sleep(0.02)
        await asyncio.gather(*playing)
        left = await server.idle()
    broken = [b for s in streams if (b := s.broken())]
    return [
        at_least("A1", "streams held at once", 1000, held, n),
        none_of("A1", "streams not finished or with wrong tokens", broken, n),
        none_of("A1", "left open or held", [left] if any(left.values()) else [], 1),
    ]


async def overload(ctx: Context) -> list[Figure]:
    """A2, A4, A5: ten times what the server can do, with probes all the while; then quiet."""
    rng, n = ctx.rng("A4"), 16
    async with Server(knobs=OVERLOADED, max_num_seqs=8, max_queued_requests=16) as server:
        calm = [(await play(server.port, draw(rng, n, 8))).ttft for _ in range(10)]
        crowd = Crowd(server.port, 12, rng, (n, n + 1))
        start = time.monotonic()
        await asyncio.sleep(ctx.size(3, 20))
        peak = sum(s.ended == "done" for s in crowd.finished) / (time.monotonic() - start)
        await crowd.stop()
        before = proc.sample(server.pid).rss
        seconds = ctx.size(5, 60)
        async with Probing(server.port, "/livez", "/readyz") as probing:
            window = await poisson(server.port, 10 * peak, seconds, rng, n)
        end = max(s.last for s in window.streams)
        growth = proc.sample(server.pid).rss / before - 1
        recovered = await _seconds_to(server, 1.5 * statistics.median(calm) + 0.01, rng)
    good = [s for s in window.good if s.last <= window.streams[0].start + seconds]
    goodput = len(good) / seconds / peak
    refusals = [s.last - s.start for s in window.refused]
    odd = [f"{s.ended} {s.status}" for s in window.streams if s.ended != "done" and s.status != 429]
    bare = [f"{s.status} without Retry-After" for s in window.refused if "retry-after" not in s.headers]
    wrong = [b for s in window.good if (b := s.broken())]
    total = len(window.streams)
    return [
        *_health("A2", probing),
        at_least("A4", "goodput / peak", 0.9, goodput, total, note=f"peak {peak:.1f}/s"),
        at_most("A4", "429 p99 (ms)", 50, 1000 * percentile(refusals, 99), len(refusals)),
        none_of("A4", "answers other than 200 and 429", odd, total),
        none_of("A4", "429 without Retry-After", bare, len(window.refused)),
        none_of("A4", "wrong tokens", wrong, len(window.good)),
        at_most("A4", "server RSS growth", 0.2, growth, 1),
        at_most("A5", "seconds to baseline TTFT", 5, recovered, 1, note=f"load ended {end - window.streams[0].start:.1f} s in"),
    ]


def _health(row: str, probing: Probing) -> list[Figure]:
    times = probing.seconds(status=None)
    return [
        at_most(row, "probe p99 (ms)", 50, 1000 * percentile(times, 99), len(times)),
        at_most(row, "probe max (ms)", 250, 1000 * max(times, default=float("inf")), len(times)),
        none_of(row, "probe failures", probing.failures(), len(times)),
    ]


async def _seconds_to(server: Server, target: float, rng) -> float:
    """How long after now a request's first token again comes within `target` seconds, three times in a row."""
    start, streak = time.monotonic(), 0
    while time.monotonic() - start < 15:
        stream = await play(server.port, draw(rng, 4, 8))
        streak = streak + 1 if stream.ended == "done" and stream.ttft <= target else 0
        if streak == 3:
            return time.monotonic() - start
    return float("inf")


async def a3(ctx: Context) -> list[Figure]:
    """27 MB prompts, one and then many at once: refused in words, while probes and a small stream go on."""
    rng, many = ctx.rng("A3"), ctx.size(12, 100)
    text = " ".join(rng.choice(("river", "stone", "water", "bed", "flow")) for _ in range(1000))
    body = b'{"max_tokens":1,"prompt":"' + (text * (27_000_000 // len(text) + 1)).encode()[:27_000_000] + b'"}'
    async with Server(knobs={"base": 0.01}) as server:
        small = Crowd(server.port, 2, rng, (4, 8))
        async with Probing(server.port, "/livez", "/readyz", interval=0.01) as probing:
            answers = [await ask(server.port, "POST", "/v1/completions", body, timeout=60)]
            answers += await asyncio.gather(
                *(ask(server.port, "POST", "/v1/completions", body, timeout=ctx.size(60, 300)) for _ in range(many))
            )
        others = await small.stop()
    refused = [f"{a.status} {a.error} {a.message()}" for a in answers if a.status not in (400, 413, 429, 503)]
    return [
        *_health("A3", probing),
        none_of("A3", "huge prompts not refused in words", refused, len(answers)),
        none_of("A3", "other streams broken", [b for s in others if (b := s.broken())], len(others)),
    ]


async def a8(ctx: Context) -> list[Figure]:
    """Long prompts one after another beside 50 short requests a second."""
    rng, seconds, chunk, per_token = ctx.rng("A8"), ctx.size(4, 30), 512, 4e-5
    knobs = {"base": 0.004, "per_token": per_token}
    longer = '{"max_position_embeddings": 65536}'
    async with Server(knobs=knobs, max_num_batched_tokens=chunk, hf_overrides=longer) as server:
        await together(server.port, [draw(rng, 4, 8) for _ in range(5)])
        idle = await poisson(server.port, 50, seconds, rng, 4)
        stop, longs = asyncio.Event(), []

        async def long_ones() -> None:
            while not stop.is_set():
                longs.append(await play(server.port, Stream(random_prompt(rng, 20_000), 2)))

        pressing = asyncio.create_task(long_ones())
        busy = await poisson(server.port, 50, seconds, rng, 4)
        stop.set()
        await pressing
    every = [*idle.streams, *busy.streams, *longs]
    alone, beside = (1000 * percentile([s.ttft for s in w.good], 99) for w in (idle, busy))
    one_chunk = 1000 * (knobs["base"] + chunk * per_token)
    note = f"{alone:.1f} ms idle, {len(longs)} prompts of 20000 tokens"
    return [
        at_most("A8", "short TTFT p99 beside long prompts (ms)", 2 * alone + one_chunk, beside, len(busy.streams), note=note),
        at_least("A8", "long prompts finished", 2, len(longs), len(longs)),
        none_of("A8", "streams broken", [b for s in every if (b := s.broken())], len(every)),
    ]


ROWS = (
    Row(("A1",), a1),
    Row(("A2", "A4", "A5"), overload),
    Row(("A3",), a3),
    Row(("A8",), a8),
)
