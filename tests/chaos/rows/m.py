"""M: host faults. No descriptors, a taken port, leftovers of processes that were killed."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import socket
import tempfile
import time
from pathlib import Path

from chaosrig import proc
from chaosrig.audited import audit
from chaosrig.context import Context, Row
from chaosrig.load import draw, play, together
from chaosrig.server import Server, free_port
from chaosrig.table import Figure, RowFailedError, at_most, exactly, none_of


async def m3(ctx: Context) -> list[Figure]:
    """64 descriptors, 300 connections."""
    rng = ctx.rng("M3")
    async with Server(knobs={"base": 0.005}, descriptors=64) as server:
        flood = []
        for _ in range(300):
            sock = socket.socket()
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError, OSError):
                sock.connect(("127.0.0.1", server.port))
            flood.append(sock)
        await asyncio.sleep(0.3)
        busy = proc.sample(server.pid).cpu
        meanwhile = await together(server.port, [draw(rng, 4) for _ in range(20)], timeout=ctx.size(4, 10))
        busy = (proc.sample(server.pid).cpu - busy) / ctx.size(4, 10)
        lived = server.process is not None and server.process.poll() is None
        for sock in flood:
            sock.close()
        start = time.monotonic()
        while (after := await play(server.port, draw(rng, 4), timeout=2)).broken() and time.monotonic() - start < 15:
            await asyncio.sleep(0.1)
        took = time.monotonic() - start if not after.broken() else float("inf")
        same = proc.alive(server.pid) and lived
    odd = [b for s in meanwhile if s.ended == "done" and (b := s.broken())]
    odd += [f"status {s.status}" for s in meanwhile if s.ended == "refused" and s.status not in (429, 503)]
    return [
        exactly("M3", "server lives", True, same, 1),
        none_of("M3", "wrong or other answers than 200, 429, 503 meanwhile", odd, len(meanwhile)),
        at_most("M3", "recovery (s)", 5, took, 1, note=f"{after.broken()}"),
        at_most("M3", "share of one CPU meanwhile", 0.9, busy, 1, note="a busy accept loop"),
    ]


async def m5(ctx: Context) -> list[Figure]:
    """The port is taken: fails before any model work."""
    with socket.create_server(("127.0.0.1", 0)) as taken, audit() as record:
        port, took, code, words = taken.getsockname()[1], [], [], []
        for env in (record.env, {}, {}, {}):  # the hook costs time, so only the others are timed
            server = Server(device="cpu", port=port, env=env)
            try:
                server.launch()
                code.append(await server.exit(20))
                took += [] if env else [time.monotonic() - server.started]
                words.append(server.last_words(1))
            finally:
                server.end()
        weights = [e.what for e in record.events() if e.name == "open"]
        seen = len(record.events())
    return [
        at_most("M5", "seconds to the exit", 1, min(took), 3),
        exactly("M5", "exit status other than 0", True, all(code), 4),
        exactly("M5", "the port is named", True, all(str(port) in w for w in words), 4, words[0]),
        none_of("M5", "weight files opened", weights, seen),
    ]


async def _kill_after(server: Server, seconds: float) -> None:
    await asyncio.sleep(seconds)
    server.kill_all()


async def m9(ctx: Context) -> list[Figure]:
    """kill -9 of everything at random moments, again and again, on one port and one TMPDIR."""
    rng, times = ctx.rng("M9"), ctx.size(6, 100)
    tmp, port = Path(tempfile.mkdtemp(prefix="chaos-left-")), free_port()
    shared = proc.shared_memory()
    failures = []
    try:
        for i in range(times):
            server = Server(knobs={"base": 0.002}, port=port, tmp=tmp)
            try:
                server.launch()
                if i % 3 == 0:
                    await asyncio.sleep(rng.uniform(0.2, 1.2))  # somewhere in the start
                else:
                    await server.ready()
                    await asyncio.gather(
                        together(port, [draw(rng, 200) for _ in range(4)]), _kill_after(server, rng.uniform(0.0, 0.3))
                    )
            except RowFailedError as e:
                failures.append(str(e))
            finally:
                server.end()
        stale = sorted(p.name for p in tmp.rglob("*"))
        async with Server(port=port, tmp=tmp) as server:
            fine = await play(port, draw(rng, 8))
            server.signal(signal.SIGTERM)
            code = await server.exit(10)
        stale += [p.name for p in tmp.rglob("*") if p.name not in stale]
        stale += proc.leaked_memory(shared)
    finally:
        shutil.rmtree(tmp, ignore_errors=True)
    return [
        none_of("M9", "start failures", failures, times),
        none_of("M9", "stale files", stale, times),
        exactly("M9", "clean start and end afterwards", (None, 0), (fine.broken(), code), 1),
    ]


ROWS = (Row(("M3",), m3), Row(("M5",), m5), Row(("M9",), m9, alone=False, patience=140))
