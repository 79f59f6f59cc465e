"""H: one stranger against everybody. Requests within every bound that once stopped the service; others must not feel them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import string
import time
from collections.abc import Awaitable, Sequence
from typing import Any

from chaosrig import proc
from chaosrig.context import Context, Row
from chaosrig.http import ask
from chaosrig.load import Stream, draw, play, together
from chaosrig.server import Probing, Server
from chaosrig.table import Figure, at_most, exactly, none_of, percentile

COMPLETIONS = "/v1/completions"
PACE, HEALTH_MS = 1.2, 50.0
"""What other streams may lose; what a health probe may take."""
KEYS = {"loud": {"Authorization": "Bearer loud"}, "quiet": {"Authorization": "Bearer quiet"}}


async def _beside(server: Server, rng: random.Random, work: Awaitable[Any] | None, n: int) -> tuple[list[Stream], Any]:
    """Eight streams of `n` tokens, and beside them `work`: the streams and its result."""
    streams = [draw(rng, n) for _ in range(8)]
    playing = asyncio.create_task(together(server.port, streams))
    await asyncio.sleep(0.2)
    result = await work if work is not None else None
    return await playing, result


def _gap(streams: Sequence[Stream]) -> float:
    """Milliseconds per token, the median stream's."""
    return 1000 * percentile([(s.last - s.first) / max(1, len(s.tokens) - 1) for s in streams], 50)


def _slowest(probing: Probing) -> float:
    """Milliseconds."""
    return max((1000 * t for t in probing.seconds("/health")), default=float("inf"))


def _figures(row: str, alone: list[Stream], before: Probing, beside: list[Stream], probing: Probing) -> list[Figure]:
    words = f"{_gap(beside):.2f} ms per token, alone {_gap(alone):.2f}"
    seen = probing.seen
    return [
        at_most(row, "pace of other streams, of that alone", PACE, _gap(beside) / _gap(alone), len(beside), note=words),
        at_most(row, "slowest /health (ms)", HEALTH_MS, _slowest(probing), len(seen), note=f"alone {_slowest(before):.1f}"),
        none_of(row, "failed probes", probing.failures(), len(seen)),
        none_of(row, "streams broken", [b for s in [*alone, *beside] if (b := s.broken())], len(alone) + len(beside)),
    ]


def _words(rng: random.Random, many: int, length: int) -> list[str]:
    return ["".join(rng.choices(string.ascii_letters, k=length)) for _ in range(many)]


async def h1(ctx: Context) -> list[Figure]:
    """Stop strings of four million characters, as many as are allowed, and as many bad words."""
    rng = ctx.rng("H1")
    base = {"prompt": [400], "max_tokens": 4}
    huge = {**base, "stop": _words(rng, 64, 65_536)}
    allowed = [{**base, "stop": _words(rng, 64, 64)} for _ in range(ctx.size(8, 40))]
    allowed += [{**base, "bad_words": _words(rng, 1000, 16)} for _ in range(ctx.size(4, 20))]

    async def attack() -> list[int]:
        answers = [await ask(server.port, "POST", COMPLETIONS, huge) for _ in range(2)]
        answers += [await ask(server.port, "POST", COMPLETIONS, body) for body in allowed]
        return [a.status for a in answers]

    async with Server(knobs={"base": 0.01}) as server:
        await attack()
        async with Probing(server.port, "/health", interval=0.01) as quiet:
            alone, _ = await _beside(server, rng, None, 250)
        before = proc.sample(server.pid).rss
        async with Probing(server.port, "/health", interval=0.01) as probing:
            beside, statuses = await _beside(server, rng, attack(), 250)
        grown = proc.sample(server.pid).rss - before
    return [
        *_figures("H1", alone, quiet, beside, probing),
        exactly("H1", "answers", [400] * 2 + [200] * len(allowed), statuses, len(statuses)),
        at_most("H1", "memory grown (MiB)", 64, grown / 2**20, 1),
    ]


async def h2(ctx: Context) -> list[Figure]:
    """n=4000 of one key, against as many single prompts as run at once: another key feels the same."""
    rng = ctx.rng("H2")
    waits: dict[str, float] = {}

    async def quiet(what: str) -> None:
        worst = 0.0
        for _ in range(ctx.size(3, 10)):
            stream = await play(server.port, draw(rng, 5), headers=KEYS["quiet"], timeout=60)
            worst = max(worst, float("inf") if stream.broken() else stream.last - stream.start)
        waits[what] = worst

    async with Server(knobs={"base": 0.005}, api_key=list(KEYS)) as server:
        loads = {
            "prompts": [{"prompt": [[400 + i % 50] for i in range(1200)], "max_tokens": 100}],
            "choices": [{"prompt": [400], "n": 4000, "max_tokens": 100, "temperature": 1}],
        }
        gaps, probes = {}, {}
        for what, bodies in loads.items():
            loud = [asyncio.create_task(ask(server.port, "POST", COMPLETIONS, b, KEYS["loud"], timeout=60)) for b in bodies]
            await asyncio.sleep(0.5)
            streams = [draw(rng, 40) for _ in range(4)]
            async with Probing(server.port, "/health", interval=0.01) as probing:
                playing = asyncio.create_task(together(server.port, streams, headers=KEYS["quiet"]))
                await quiet(what)
                gaps[what] = _gap(await playing)
            probes[what] = probing
            for task in loud:
                task.cancel()
            await asyncio.gather(*loud, return_exceptions=True)
            await server_idle(server)
    note = f"{waits['choices']:.2f} s, beside prompts {waits['prompts']:.2f} s"
    return [
        at_most(
            "H2",
            "wait of another key's short request, of that beside prompts",
            2,
            waits["choices"] / waits["prompts"],
            3,
            note=note,
        ),
        at_most("H2", "pace of another key's streams, of that beside prompts", PACE, gaps["choices"] / gaps["prompts"], 4),
        at_most(
            "H2",
            "slowest /health (ms)",
            HEALTH_MS,
            _slowest(probes["choices"]),
            3,
            note=f"beside prompts {_slowest(probes['prompts']):.1f}",
        ),
    ]


async def server_idle(server: Server) -> None:
    """Until nothing runs, as another key may ask."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        now = await server.gauges(KEYS["quiet"])
        if not now["running"] and not now["waiting"]:
            return
        await asyncio.sleep(0.05)


async def h3(ctx: Context) -> list[Figure]:
    """Heads without bodies, more than the queue has places, and then they leave."""
    rng, writers = ctx.rng("H3"), list[asyncio.StreamWriter]()
    half = (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: 10.0.%d.%d\r\n"
        b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    )

    async def attack() -> list[Stream]:
        for i in range(1400):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(half % (i // 250, i % 250))
            writers.append(writer)
            if i % 20 == 0:
                await asyncio.sleep(0.01)
        return [await play(server.port, draw(rng, 4)) for _ in range(20)]

    async with Server(knobs={"base": 0.01}) as server:
        async with Probing(server.port, "/health", interval=0.01) as quiet:
            alone, _ = await _beside(server, rng, None, 300)
        async with Probing(server.port, "/health", interval=0.01) as probing:
            beside, healthy = await _beside(server, rng, attack(), 300)
        for writer in writers:
            writer.close()
        with contextlib.suppress(OSError):
            await asyncio.gather(*(w.wait_closed() for w in writers), return_exceptions=True)
        after = await play(server.port, draw(rng, 4))
        traces = [line for line in server.log().splitlines() if "Traceback" in line]
    return [
        *_figures("H3", alone, quiet, beside, probing),
        none_of("H3", "healthy requests refused", [b for s in [*healthy, after] if (b := s.broken())], len(healthy) + 1),
        none_of("H3", "tracebacks", traces, len(writers)),
    ]


ROWS = (Row(("H1",), h1), Row(("H2",), h2), Row(("H3",), h3))
