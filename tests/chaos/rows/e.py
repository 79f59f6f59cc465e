"""E: clients that read slowly, not at all, go away, or half close: the others do not notice, and nothing stays held."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time

from chaosrig import proc
from chaosrig.context import Context, Row
from chaosrig.http import head
from chaosrig.load import Stream, draw, play, read_answer, rst, together
from chaosrig.proxy import Faults, Proxy
from chaosrig.server import Server
from chaosrig.table import Figure, at_most, none_of, percentile
from chaosrig.truth import random_prompt


async def e1(ctx: Context) -> list[Figure]:
    """A few streams beside many clients that read 10 bytes a second, compared with the same beside as many that read. Half
    of the clients ask for log-probabilities: an answer several times what sockets buffer."""
    rng, slow = ctx.rng("E1"), ctx.size(40, 200)
    gaps, others, left, growth = [], [], [], 0.0
    # Slow enough steps that the machine has time for so many streams: what is measured is slowness, not load.
    async with Server(knobs={"base": ctx.size(0.005, 0.05)}) as server:
        for size, pause in ((1 << 16, 0.02), (10, 1.0)):
            before = proc.sample(server.pid).rss
            bodies = [Stream(random_prompt(rng, 8), 1200, {"logprobs": 5} if i % 2 else {}).body() for i in range(slow)]
            connections = [await _never_reads(server.port, body) for body in bodies]
            sipping = asyncio.create_task(_sip(connections, size, pause))
            streams = await together(server.port, [draw(rng, 400) for _ in range(4)])
            if pause == 1.0:
                await asyncio.sleep(ctx.size(4, 15))
                growth = (proc.sample(server.pid).rss - before) / slow
            gaps.append([b - a for s in streams for a, b in zip(s.times, s.times[1:], strict=False)])
            others += streams
            sipping.cancel()
            for sock in connections:
                sock.close()
            left.append(await server.idle(10))
    with_readers, with_slow = (1000 * percentile(g, 99) for g in gaps)
    note = f"p99 {with_readers:.1f} ms beside readers, {with_slow:.1f} ms beside slow ones"
    return [
        at_most("E1", "RSS per slow client (KB)", 256, growth / 1024, slow),
        at_most("E1", "others' ITL p99 ratio", 1.2, with_slow / with_readers, len(gaps[1]), note=note),
        none_of("E1", "other streams broken", [b for s in others if (b := s.broken())], len(others)),
        none_of("E1", "left open or held", [x for x in left if any(x.values())], 2),
    ]


async def _never_reads(port: int, body: bytes) -> socket.socket:
    """A connection with a tiny receive buffer whose request is sent and whose answer waits."""
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    sock.setblocking(False)
    await loop.sock_connect(sock, ("127.0.0.1", port))
    await loop.sock_sendall(sock, head("POST", "/v1/completions", {"Connection": "close"}, len(body)) + body)
    return sock


async def _sip(connections: list[socket.socket], size: int, pause: float) -> None:
    """Read `size` bytes from each, then pause, for ever."""
    while True:
        for sock in connections:
            with contextlib.suppress(OSError):
                sock.recv(size)
        await asyncio.sleep(pause)


async def e2(ctx: Context) -> list[Figure]:
    """A client that never reads is cut after the limit."""
    rng, limit = ctx.rng("E2"), 3
    async with Server(knobs={"base": 0.001}, slow_client_timeout=limit) as server:
        # More than any socket buffer takes: eight choices with twenty log-probabilities per token.
        body = Stream(random_prompt(rng, 8), 2000, {"n": 8, "logprobs": 20}).body()
        sock = await _never_reads(server.port, body)
        start = time.monotonic()
        left = await server.idle(0.0)
        while not left["running"] and time.monotonic() - start < 5:
            left = await server.idle(0.0)
        connected = True
        while connected and time.monotonic() - start < ctx.size(20, 60):
            connected = _connections(server.pid, server.port) > 0
            await asyncio.sleep(0.1)
        took = time.monotonic() - start if not connected else float("inf")
        left = await server.idle(2)
        other = await play(server.port, draw(rng, 8))
        sock.close()
    return [
        at_most("E2", f"seconds until cut (limit {limit} s)", 60, took, 1),
        none_of("E2", "blocks or requests left", [left] if any(left.values()) else [], 1),
        none_of("E2", "others broken", [b for s in (other,) if (b := s.broken())], 1),
    ]


def _connections(pid: int, port: int) -> int:
    """Established connections of the server's port that the server still holds (state 01, and an inode)."""
    count = 0
    with open(f"/proc/{pid}/net/tcp") as lines:
        for line in list(lines)[1:]:
            local, state, inode = line.split()[1], line.split()[3], line.split()[9]
            count += local.endswith(f":{port:04X}") and state in ("01", "08") and inode != "0"
    return count


async def e3(ctx: Context) -> list[Figure]:
    """RST at each stage: while queued, in prefill, in decode at a random point; seconds until the engine has let go."""
    rng, n, step = ctx.rng("E3"), ctx.size(15, 150), 0.01
    knobs = {"base": step, "per_token": 2e-5}
    took: dict[str, list[float]] = {"decode": [], "prefill": [], "queued": []}
    async with Server(knobs=knobs, max_num_seqs=4, max_num_batched_tokens=256) as server:
        for _ in range(n):
            await play(server.port, draw(rng, 1000), abort_after=rng.randrange(1, 12))
            took["decode"].append(await _shown(server, 0, 0))
            await _leave(server, Stream(random_prompt(rng, 1900), 50), rng.uniform(0.01, 0.05))
            took["prefill"].append(await _shown(server, 0, 0))
        while len(took["queued"]) < n:
            took["queued"] += await _left_while_queued(server, rng, min(15, n - len(took["queued"])))
        left = await server.idle(5)
    limit = 1000 * (step + 256 * 2e-5) + 100
    figures = [
        at_most("E3", f"abort to free, {stage}, p99 (ms)", limit, 1000 * percentile(t, 99), len(t)) for stage, t in took.items()
    ]
    return [*figures, none_of("E3", "blocks or requests left", [left] if any(left.values()) else [], 3 * n)]


async def _left_while_queued(server: Server, rng: random.Random, n: int) -> list[float]:
    """n requests that go away while four others run; those are long enough for all of that."""
    playing = asyncio.gather(*(play(server.port, draw(rng, 1800)) for _ in range(4)))
    try:
        await _shown(server, 4, 0)
        took = []
        for _ in range(n):
            await _leave(server, draw(rng, 100), None)
            took.append(await _shown(server, 4, 0))
        return took
    finally:
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)


async def _leave(server: Server, stream: Stream, after: float | None) -> None:
    """Send a request and go away by RST: `after` seconds, or when it is seen waiting."""
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    body = stream.body()
    writer.write(head("POST", "/v1/completions", length=len(body)) + body)
    await writer.drain()
    if after is None:
        await _shown(server, 4, 1)
    else:
        await asyncio.sleep(after)
    rst(writer)


async def _shown(server: Server, running: int, waiting: int, seconds: float = 3.0) -> float:
    """Seconds until the server shows so many; infinite if it does not."""
    start = time.monotonic()
    while time.monotonic() - start < seconds:
        now = await server.gauges()
        if (now["running"], now["waiting"]) == (running, waiting):
            return time.monotonic() - start
        await asyncio.sleep(0.002)
    return float("inf")


async def e4(ctx: Context) -> list[Figure]:
    """The client ends its side after the request, directly and through a proxy; the answer comes in full."""
    rng, n = ctx.rng("E4"), ctx.size(10, 100)
    streams = [draw(rng, rng.randrange(1, 30)) for _ in range(2 * n)]
    async with Server(knobs={"base": 0.002}) as server:
        await asyncio.gather(*(_half_closed(server.port, s) for s in streams[:n]))
        async with Proxy(server.port, up=Faults(half_close_after=1), seed=ctx.seed) as proxy:
            await asyncio.gather(*(_half_closed(proxy.port, s, eof=False) for s in streams[n:]))
        left = await server.idle()
    return [
        none_of("E4", "half-closed requests not answered in full", [b for s in streams if (b := s.broken())], len(streams)),
        none_of("E4", "left open or held", [left] if any(left.values()) else [], 1),
    ]


async def _half_closed(port: int, stream: Stream, eof: bool = True) -> None:
    body = stream.body()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(10):
            writer.write(head("POST", "/v1/completions", {"Connection": "close"}, len(body)) + body)
            if eof:
                writer.write_eof()
            await read_answer(reader, stream)
    except TimeoutError:
        stream.ended = "timeout"
    except (OSError, asyncio.IncompleteReadError) as e:
        stream.ended, stream.error = "reset", str(e)
    finally:
        writer.close()


ROWS = (Row(("E1",), e1), Row(("E2",), e2, alone=False), Row(("E3",), e3), Row(("E4",), e4, alone=False))
