"""C: process death. Engines are killed, stopped and poisoned under load; streams pause and go on, token for token."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import signal
import time
from collections.abc import Callable, Sequence

from chaosrig import proc
from chaosrig.context import Context, Row
from chaosrig.http import ask
from chaosrig.load import Crowd, Stream, draw, play, together
from chaosrig.server import Probing, Server
from chaosrig.table import Figure, RowFailedError, at_least, at_most, exactly, none_of, percentile
from chaosrig.truth import continuation, random_prompt

MANY_RESTARTS = 100_000
POISON = 77
"""A token that neither prompts of the innocent nor what follows them hold."""


async def _kill_until(
    server: Server, crowd: Crowd, kills: int, rng: random.Random, again: bool = False
) -> list[tuple[float, float]]:
    """Kill the engine at random times; (killed, first new token) per kill. again: the next engine too, during its replay."""
    spans: list[tuple[float, float]] = []
    pid = await server.next_engine(None)
    for _ in range(kills):
        await asyncio.sleep(rng.uniform(0.05, 0.6))
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        pid = await server.next_engine(pid)
        if again:
            await asyncio.sleep(rng.uniform(0.0, 0.5))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            pid = await server.next_engine(pid)
        # What the dead engine had sent comes within milliseconds; a new one takes longer than that to start.
        since = max(time.monotonic(), killed + 0.1)
        if not await _until(lambda since=since: crowd.newest() > since, 20):
            raise RowFailedError(f"no stream got a token within 20 s of kill {len(spans) + 1}")
        spans.append((killed, crowd.newest()))
    return spans


async def _until(holds: Callable[[], bool], seconds: float) -> bool:
    """Did it come to hold within that time?"""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.005)
    return True


def _false_ready(spans: Sequence[tuple[float, float]], probing: Probing) -> float:
    """The longest time (seconds) in which /readyz said 200 without an engine: after a kill, and before the first new token."""
    worst = 0.0
    for killed, back in spans:
        inside = [(t, s) for _, t, _, s in probing.seen if killed <= t < back]
        not_ready = [t for t, s in inside if s != 200]
        early = [t for t, s in inside if s == 200 and (not not_ready or t < not_ready[0])]
        if early:
            worst = max(worst, (not_ready[0] if not_ready else back) - killed)
        again = [t for t, s in inside if s == 200 and not_ready and t > not_ready[-1]]
        if again:
            worst = max(worst, back - again[0])
    return worst


async def c1(ctx: Context) -> list[Figure]:
    """C1 and C8: kill -9 of the engine again and again under a crowd, /readyz polled all the while."""
    rng, clients, kills = ctx.rng("C1"), ctx.size(40, 200), ctx.size(3, 50)
    async with Server(knobs={"base": 0.01}, max_restarts=MANY_RESTARTS) as server:
        async with Probing(server.port, "/readyz", interval=0.05) as probing:
            crowd = Crowd(server.port, clients, rng, (100, 300), timeout=60)
            spans = await _kill_until(server, crowd, kills, rng)
            streams = await crowd.stop()
        left = await server.idle()
        pauses = [back - killed for killed, back in spans]
    return [
        *_all_right("C1", streams),
        at_most("C1", "seconds to the first new token, p50", 3, percentile(pauses, 50), kills),
        at_most("C1", "seconds to the first new token, max", 6, max(pauses), kills),
        none_of("C1", "left open or held", [left] if any(left.values()) else [], 1),
        at_most("C8", "false-ready (ms)", 500, 1000 * _false_ready(spans, probing), len(probing.seen), note=_answers(probing)),
    ]


def _answers(probing: Probing) -> str:
    return ", ".join(f"{s}: {sum(1 for *_, x in probing.seen if x == s)}" for s in sorted({s for *_, s in probing.seen}))


def _all_right(row: str, streams: Sequence[Stream]) -> list[Figure]:
    hung = [s for s in streams if s.ended == "timeout"]
    wrong = [w for s in streams if (w := s.wrong())]
    resumed = sum(s.broken() is None for s in streams) / max(1, len(streams))
    why = next((b for s in streams if (b := s.broken())), "")
    return [
        none_of(row, "hung clients", [f"after {len(s.tokens)} of {s.n}" for s in hung], len(streams)),
        none_of(row, "lost, doubled or wrong tokens", wrong, sum(len(s.tokens) for s in streams)),
        at_least(row, "streams byte-identical to the undisturbed run (%)", 100, 100 * resumed, len(streams), note=why),
    ]


async def c9(ctx: Context) -> list[Figure]:
    """The engine is killed, and its successor during the replay."""
    rng, kills = ctx.rng("C9"), ctx.size(2, 15)
    async with Server(knobs={"base": 0.01}, max_restarts=MANY_RESTARTS) as server:
        crowd = Crowd(server.port, ctx.size(20, 100), rng, (100, 250), timeout=60)
        await _kill_until(server, crowd, kills, rng, again=True)
        return _all_right("C9", await crowd.stop())


def _innocents(rng: random.Random, count: int, n: int) -> list[Stream]:
    out: list[Stream] = []
    while len(out) < count:
        stream = Stream(random_prompt(rng, 10), n)
        if POISON not in [*stream.prompt, *continuation(stream.prompt, n)]:
            out.append(stream)
    return out


async def c2(ctx: Context) -> list[Figure]:
    """One request in a batch of 32 crashes the step."""
    rng = ctx.rng("C2")
    env = {"THALWEG_FAILPOINTS": f"engine.step:token={POISON}:crash"}
    async with Server(knobs={"base": 0.01}, env=env, max_restarts=20, max_num_seqs=32) as server:
        engines = {server.engine_pid()}
        watching = asyncio.create_task(_watch_engines(server, engines))
        innocents = _innocents(rng, 31, 60)
        playing = asyncio.gather(*(play(server.port, s) for s in innocents))
        await _until(lambda: all(s.tokens for s in innocents), 10)
        poison = await play(server.port, Stream([*random_prompt(rng, 6), POISON, *random_prompt(rng, 3)], 40))
        await playing
        watching.cancel()
        after = await play(server.port, _innocents(rng, 1, 8)[0])
    done = sum(s.broken() is None for s in innocents)
    failed = poison.ended in ("error", "refused") and not poison.tokens
    return [
        exactly("C2", "innocents completed", 31, done, 31, next((b for s in innocents if (b := s.broken())), "")),
        at_most("C2", "engine restarts", 2, len(engines - {None}) - 1, 1),
        exactly("C2", "the poison request fails with words", True, failed, 1, f"{poison.ended} {poison.status} {poison.error}"),
        exactly("C2", "served afterwards", None, after.broken(), 1),
    ]


async def _watch_engines(server: Server, seen: set) -> None:
    while True:
        seen.add(server.engine_pid())
        await asyncio.sleep(0.02)


async def c4(ctx: Context) -> list[Figure]:
    """The engine stands still (SIGSTOP); defaults decide when that is noticed."""
    rng = ctx.rng("C4")
    async with Server(knobs={"base": 0.01}) as server:
        streams = [draw(rng, 400) for _ in range(ctx.size(12, 64))]
        playing = asyncio.create_task(together(server.port, streams))
        await _until(lambda: all(s.tokens for s in streams), 10)
        pid = await server.next_engine(None)
        stopped = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        await _until(lambda: server.engine_pid() != pid, 30)
        detected = time.monotonic() - stopped if server.engine_pid() != pid else float("inf")
        if detected == float("inf"):
            os.kill(pid, signal.SIGCONT)
        await playing
    return [at_most("C4", "detection (s)", 10, detected, 1), *_all_right("C4", streams)]


async def c5(ctx: Context) -> list[Figure]:
    """The API server is killed while streaming."""
    rng, times, orphans, files, slowest = ctx.rng("C5"), ctx.size(2, 20), [], [], 0.0
    before = proc.shared_memory()
    for _ in range(times):
        async with Server(knobs={"base": 0.01}) as server:
            streams = [draw(rng, 500) for _ in range(8)]
            playing = asyncio.create_task(together(server.port, streams))
            await _until(lambda streams=streams: all(s.tokens for s in streams), 10)
            others = [p for p in server.processes() if p != server.pid]
            killed = time.monotonic()
            os.kill(server.pid, signal.SIGKILL)
            await _until(lambda others=others: not any(map(proc.alive, others)), 3)
            slowest = max(slowest, time.monotonic() - killed)
            orphans += [proc.cmdline(p) for p in others if proc.alive(p)]
            files += server.left_behind()
            await playing
    await _until(lambda: not proc.leaked_memory(before), 5)  # other tests clean up
    shared = proc.leaked_memory(before)
    return [
        none_of("C5", "orphans", orphans, times),
        at_most("C5", "seconds until the engine is gone", 1, slowest, times),
        none_of("C5", "shared memory or temporary files left", files + shared, times),
    ]


async def c7(ctx: Context) -> list[Figure]:
    """Every engine dies as soon as it is there: backoff, then an end with the reason, not a fork bomb."""
    async with Server(knobs={"base": 0.01}) as server:
        engines, start, cpu = [await server.next_engine(None)], time.monotonic(), proc.sample(server.pid).cpu
        os.kill(engines[0], signal.SIGKILL)
        quiet = time.monotonic()
        # Over when it has given up, or started none for longer than any backoff.
        while time.monotonic() - quiet < (2 if "used up" in server.log() else 25) and proc.alive(server.pid):
            if time.monotonic() - start > 90:
                break
            pid = server.engine_pid()
            if pid is not None and pid not in engines:
                engines.append(pid)
                quiet = time.monotonic()
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(0.01)
        took = quiet - start
        ended = not proc.alive(server.pid)
        busy = (proc.sample(server.pid).cpu - cpu) / (time.monotonic() - start) if not ended else 0.0
        status = (await ask(server.port, "GET", "/readyz")).status if not ended else 0
        told = server.log()
    reason = [line for line in told.splitlines() if "restart" in line.lower() and ("used up" in line or "max_restarts" in line)]
    # By the log: the loop above also kills a process that only stands by.
    gone = set(re.findall(r"engine process (\d+) is gone", told))
    restarts = len(gone) - 1 + sum("did not start again" in line and "used up" not in line for line in told.splitlines())
    note = f"server {'ended' if ended else f'lives, /readyz {status}'}; {reason[:1]}"
    return [
        at_most("C7", "restarts", 5, restarts, 1),
        at_least("C7", "restarts before giving up", 1, restarts, 1),
        exactly("C7", "not ready, or ended", True, ended or status == 503, 1, note),
        exactly("C7", "the log gives the reason", True, bool(reason), 1, note),
        at_least("C7", "seconds spent (backoff)", 2, took, 1),
        at_most("C7", "share of one CPU of the server", 0.5, busy, 1),
    ]


ROWS = (
    Row(("C1", "C8"), c1),
    Row(("C2",), c2),
    Row(("C4",), c4, alone=False),
    Row(("C5",), c5),
    Row(("C7",), c7, alone=False),
    Row(("C9",), c9),
)
