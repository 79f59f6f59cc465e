"""N: neighbours. One client hoards what all share: streams, files, connections, a jail. Another key does not notice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import orjson
from chaosrig import proc
from chaosrig.context import Context, Row
from chaosrig.http import Answer, ask, head, raw, split
from chaosrig.server import Probing, Server
from chaosrig.table import Figure, RowFailedError, at_most, exactly, none_of, percentile

HOG, GUEST = ({"Authorization": f"Bearer {name}"} for name in ("hog", "guest"))
KEYS = ["hog", "guest"]
CHAT = "/v1/chat/completions"
SHORT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "ignore_eos": True}
LONG_CONTEXT = '{"max_position_embeddings": 8192}'
MIB = 1 << 20


async def _chats(port: int, n: int, pause: float = 0.2) -> tuple[list[float], list[str]]:
    """Seconds of each of n short chats of the guest, and those that were not answered with 200."""
    times, bad = [], []
    for _ in range(n):
        answer = await ask(port, "POST", CHAT, SHORT, GUEST, timeout=90)
        times.append(answer.seconds)
        if answer.status != 200:
            bad.append(f"{answer.status} {answer.error} {answer.message()}")
        await asyncio.sleep(pause)
    return times, bad


def _told(row: str, times: list[float], bad: list[str], probing: Probing, who: str) -> list[Figure]:
    """What the guest and the probes saw."""
    probes = probing.seconds("/livez", status=None)
    return [
        at_most(row, f"guest's chat beside {who}, slowest (s)", 1, max(times, default=float("inf")), len(times)),
        none_of(row, "guest's chats not answered", bad, len(times)),
        at_most(row, "/livez p99 (ms)", 50, 1000 * percentile(probes, 99), len(probes)),
        at_most(row, "/livez slowest (ms)", 250, 1000 * max(probes, default=float("inf")), len(probes)),
        none_of(row, "/livez failures", probing.failures(), len(probes)),
    ]


def _sent(port: int, path: str, body: Any, headers: dict[str, str], buffer: int = 2048) -> socket.socket:
    """A connection whose request is out and whose answer nobody reads."""
    data = orjson.dumps(body)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    sock.connect(("127.0.0.1", port))
    sock.sendall(head("POST", path, headers, len(data)) + data)
    return sock


UNREAD = {"prompt": [5, 6, 7], "n": 160, "max_tokens": 1500, "ignore_eos": True, "stream": True, "logprobs": 5}


async def n1(ctx: Context) -> list[Figure]:
    """160 choices with log-probabilities that nobody reads, three times."""
    async with Server(knobs={"base": 0.005}, api_key=KEYS, max_num_seqs=8) as server:
        with contextlib.ExitStack() as unread:
            for _ in range(3):
                unread.enter_context(_sent(server.port, "/v1/completions", UNREAD, HOG))
            await asyncio.sleep(3)
            async with _watched(server.pid) as memory, Probing(server.port, "/livez") as probing:
                times, bad = await _chats(server.port, ctx.size(10, 50))
            answer = await ask(server.port, "POST", CHAT, SHORT, HOG, timeout=30)
    return [
        *_told("N1", times, bad, probing, "unread streams"),
        exactly("N1", "the same key goes on beside them", 200, answer.status, 1),
        at_most("N1", "server's memory (MiB)", 600, memory[-1] / MIB, 1),
    ]


async def n9(ctx: Context) -> list[Figure]:
    """The same without keys, from the same address."""
    async with Server(knobs={"base": 0.005}, max_num_seqs=8) as server:
        with _sent(server.port, "/v1/completions", UNREAD, {}):
            await asyncio.sleep(3)
            async with Probing(server.port, "/livez") as probing:
                times, bad = await _chats(server.port, ctx.size(10, 50))
    return _told("N9", times, bad, probing, "an unread stream without keys")


async def _read_all(port: int, body: Any, headers: dict[str, str]) -> int:
    """Bytes of an answer that is read as it comes."""
    data, size = orjson.dumps(body), 0
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head("POST", "/v1/completions", headers, len(data)) + data)
        while piece := await reader.read(1 << 16):
            size += len(piece)
    finally:
        writer.close()
    return size


async def _beside(row: str, ctx: Context, bodies: list[dict[str, Any]], who: str, **flags: Any) -> list[Figure]:
    """Requests of one key, read as they come, and another key's chats."""
    async with Server(knobs={"base": 0.005}, api_key=KEYS, max_num_seqs=8, hf_overrides=LONG_CONTEXT, **flags) as server:
        hogs = [asyncio.create_task(_read_all(server.port, body, HOG)) for body in bodies]
        await asyncio.sleep(2)
        async with Probing(server.port, "/livez") as probing:
            times, bad = await _chats(server.port, ctx.size(10, 50))
        for hog in hogs:
            hog.cancel()
        await asyncio.gather(*hogs, return_exceptions=True)
    return _told(row, times, bad, probing, who)


LONG = {"prompt": [5, 6, 7], "n": 40, "max_tokens": 4000, "ignore_eos": True, "stream": True}
MANY = {"prompt": [5, 6, 7], "n": 4000, "max_tokens": 400, "ignore_eos": True, "stream": True}


async def n2(ctx: Context) -> list[Figure]:
    """Long generations, and 4,000 choices, of one key: more than the engine runs at once."""
    return await _beside("N2", ctx, [LONG, MANY, LONG | {"stream": False}], "4,000 tokens and 4,000 choices")


async def n10(ctx: Context) -> list[Figure]:
    """A cache that holds fewer sequences than there are slots."""
    flags = {"num_gpu_blocks_override": 600, "max_model_len": 4096}
    bodies = [LONG | {"prompt": [i] * 1500, "n": 1, "max_tokens": 2500} for i in range(12)]
    return await _beside("N10", ctx, bodies, "sequences that fill the cache", **flags)


async def n3(ctx: Context) -> list[Figure]:
    """As many keys as the engine has places, a long generation each; one more key asks for little."""
    keys, body = [f"hog{i}" for i in range(8)], {"prompt": [5, 6, 7], "max_tokens": 4000, "ignore_eos": True, "stream": True}
    async with Server(knobs={"base": 0.005}, api_key=[*keys, "guest"], max_num_seqs=8, hf_overrides=LONG_CONTEXT) as server:
        who = [{"Authorization": f"Bearer {key}"} for key in keys * 2]
        hogs = [asyncio.create_task(_read_all(server.port, body, headers)) for headers in who]
        await asyncio.sleep(3)
        async with Probing(server.port, "/livez") as probing:
            times, bad = await _chats(server.port, ctx.size(10, 50))
        for hog in hogs:
            hog.cancel()
        await asyncio.gather(*hogs, return_exceptions=True)
    return _told("N3", times, bad, probing, "eight keys' long generations")


# ------------------------------------------------------------------ files and batches


@contextlib.asynccontextmanager
async def _watched(pid: int) -> AsyncIterator[list[int]]:
    """The most bytes of memory the process had while the block ran: the last of the list."""
    seen = [proc.sample(pid).rss]

    async def look() -> None:
        while True:
            seen.append(max(seen[-1], proc.sample(pid).rss))
            await asyncio.sleep(0.01)

    task = asyncio.create_task(look())
    try:
        yield seen
    finally:
        task.cancel()


async def _upload(port: int, data: bytes, headers: dict[str, str]) -> str:
    form = (
        b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n' + data + b"\r\n--b--\r\n"
    )
    headers = headers | {"Content-Type": "multipart/form-data; boundary=b", "Content-Length": str(len(form))}
    answer = await _raw(port, "POST", "/v1/files", form, headers)
    if answer.status != 200:
        raise RowFailedError(f"upload: {answer.status} {answer.error} {answer.message()}")
    return str(answer.json()["id"])


async def _raw(port: int, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
    said, how = await raw(port, head(method, path, {"Connection": "close"} | headers) + body, timeout=90, until_answer=True)
    answers = split(said)
    return answers[0] if answers else Answer(error=how)


async def _batch(port: int, file: str, headers: dict[str, str]) -> str:
    asked = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
    answer = await ask(port, "POST", "/v1/batches", asked, headers, timeout=90)
    if answer.status != 200:
        raise RowFailedError(f"batch: {answer.status} {answer.error} {answer.message()}")
    return str(answer.json()["id"])


async def _ended(port: int, batch: str, headers: dict[str, str], seconds: float) -> dict[str, Any]:
    """The batch when it has ended, or as it is after so long."""
    end = time.monotonic() + seconds
    while True:
        said = (await ask(port, "GET", f"/v1/batches/{batch}", headers=headers, timeout=90)).json()
        if said["status"] in ("completed", "failed", "expired", "cancelled") or time.monotonic() > end:
            return dict(said)
        await asyncio.sleep(0.05)


def _line(i: int, size: int = 0) -> bytes:
    body = {"messages": [{"role": "user", "content": "x" * size}], "max_tokens": 2, "ignore_eos": True}
    return orjson.dumps({"custom_id": f"c{i}", "method": "POST", "url": CHAT, "body": body}) + b"\n"


async def n4(ctx: Context) -> list[Figure]:
    """60 MB of line ends, as a file and then as batches."""
    data, times, bad = b"\n" * 60_000_000, [], []
    async with Server(knobs={"base": 0.005}, api_key=KEYS) as server:
        await _chats(server.port, 2, 0)
        async with _watched(server.pid) as memory, Probing(server.port, "/livez") as probing:
            guest = asyncio.create_task(_chats(server.port, ctx.size(20, 100)))
            file = await _upload(server.port, data, HOG)
            batches = [await _batch(server.port, file, HOG) for _ in range(ctx.size(3, 10))]
            ends = [(await _ended(server.port, b, HOG, 60))["status"] for b in batches]
            times, bad = await guest
    return [
        *_told("N4", times, bad, probing, "line ends"),
        at_most("N4", "server's memory (MiB)", 600, memory[-1] / MIB, 1),
        exactly("N4", "batches without lines fail", ["failed"], sorted(set(ends)), len(ends)),
    ]


async def n5(ctx: Context) -> list[Figure]:
    """40 batches of one file of 48 MB; another key's batch of one line, and its chats."""
    data = b"".join(_line(i, 900) for i in range(48_000))
    data = data[: data.rindex(b"\n", 0, 48 * MIB) + 1]
    async with Server(knobs={"base": 0.005}, api_key=KEYS, max_num_seqs=8) as server:
        await _chats(server.port, 2, 0)
        async with _watched(server.pid) as memory, Probing(server.port, "/livez") as probing:
            file = await _upload(server.port, data, HOG)
            for _ in range(40):
                await _batch(server.port, file, HOG)
            took, ends = [], []
            for _ in range(ctx.size(2, 10)):
                start = time.monotonic()
                mine = await _batch(server.port, await _upload(server.port, _line(0), GUEST), GUEST)
                ends.append((await _ended(server.port, mine, GUEST, 120))["status"])
                took.append(time.monotonic() - start)
            times, bad = await _chats(server.port, ctx.size(20, 100))
    return [
        *_told("N5", times, bad, probing, "40 batches"),
        at_most("N5", "guest's batch of one line, slowest (s)", 5, max(took), len(took)),
        exactly("N5", "guest's batches", ["completed"], sorted(set(ends)), len(ends)),
        at_most("N5", "server's memory (MiB)", 600, memory[-1] / MIB, 1, note=f"a file of {len(data) / MIB:.0f} MiB"),
    ]


# ------------------------------------------------------------------ connections


async def _crowded(row: str, first: bytes, ctx: Context) -> list[Figure]:
    """8,200 connections that say `first` and no more."""
    n, crowd = 8200, []
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    async with Server(knobs={"base": 0.005}, api_key=KEYS) as server:
        await _chats(server.port, 2, 0)
        async with Probing(server.port, "/livez", "/health") as probing:
            try:
                for _ in range(n):
                    sock = socket.socket()
                    sock.setblocking(False)
                    with contextlib.suppress(BlockingIOError):
                        sock.connect(("127.0.0.1", server.port))
                    crowd.append(sock)
                    if len(crowd) % 64 == 0:
                        await asyncio.sleep(0.005)
                for i, sock in enumerate(crowd if first else ()):
                    with contextlib.suppress(OSError):
                        sock.send(first)
                    if i % 64 == 0:
                        await asyncio.sleep(0.005)
                times, bad = await _chats(server.port, ctx.size(10, 30))
            finally:
                for sock in crowd:
                    sock.close()
    return _told(row, times, bad, probing, f"{n} connections")


async def n6(ctx: Context) -> list[Figure]:
    return await _crowded("N6", b"", ctx)


async def n7(ctx: Context) -> list[Figure]:
    return await _crowded("N7", b"P", ctx)


# ------------------------------------------------------------------ a jail


def _cells(server: Server) -> list[int]:
    return [p for p in server.processes() if "thalweg.template.cell" in proc.cmdline(p)]


async def n8(ctx: Context) -> list[Figure]:
    """The process that renders conversations is stopped, again and again."""
    took, bad, stopped = [], [], []
    async with Server(knobs={"base": 0.005}, api_key=KEYS) as server:
        await _chats(server.port, 2, 0)
        for _ in range(ctx.size(3, 20)):
            for pid in _cells(server):
                os.kill(pid, signal.SIGSTOP)
                stopped.append(pid)
            times, wrong = await _chats(server.port, 1, 0)
            took += times
            bad += wrong
    return [
        at_most("N8", "chat beside a stopped jail, slowest (s)", 10, max(took), len(took)),
        none_of("N8", "chats not answered", bad, len(took)),
        exactly("N8", "jails were stopped", True, len(stopped) >= len(took), len(stopped)),
    ]


ROWS = (
    Row(("N1",), n1), Row(("N2",), n2), Row(("N3",), n3), Row(("N4",), n4), Row(("N5",), n5, patience=240), Row(("N6",), n6),
    Row(("N7",), n7), Row(("N8",), n8), Row(("N9",), n9), Row(("N10",), n10),
)  # fmt: skip
