"""F: HTTP framing. What two parsers could read differently is refused, and so is what is too long, before it is read."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import time

from chaosrig import proc
from chaosrig.context import Context, Row
from chaosrig.http import Answer, ask, head, raw, split
from chaosrig.load import draw, play
from chaosrig.server import Server
from chaosrig.table import Figure, at_least, at_most, none_of

BODY = b'{"prompt":[400],"max_tokens":1}'
SECOND = b"GET /version HTTP/1.1\r\nHost: smuggled\r\n\r\n"
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)


def _post(*headers: bytes, body: bytes = b"", first: bytes = b"POST /v1/completions HTTP/1.1", end: bytes = b"\r\n") -> bytes:
    lines = [first, b"Host: 127.0.0.1", b"Content-Type: application/json", *headers]
    return end.join(lines) + end + end + body


def _smuggling() -> dict[str, bytes]:
    length = b"Content-Length: %d" % len(BODY)
    chunked = b"Transfer-Encoding: chunked"
    after = CHUNKED + SECOND
    return {
        "CL and TE": _post(length, chunked, body=after),
        "TE and CL": _post(chunked, b"Content-Length: 4", body=after),
        "two lengths": _post(length, b"Content-Length: 0", body=BODY + SECOND),
        "two equal lengths": _post(length, length, body=BODY + SECOND),
        "list of lengths": _post(b"Content-Length: %d, %d" % (len(BODY), len(BODY)), body=BODY + SECOND),
        "signed length": _post(b"Content-Length: +%d" % len(BODY), body=BODY + SECOND),
        "negative length": _post(b"Content-Length: -1", body=BODY + SECOND),
        "hexadecimal length": _post(b"Content-Length: 0x1f", body=BODY + SECOND),
        "empty length": _post(b"Content-Length:", body=BODY + SECOND),
        "length with a space inside": _post(b"Content-Length: 3 1", body=BODY + SECOND),
        "TE xchunked": _post(b"Transfer-Encoding: xchunked", body=after),
        "TE chunked, identity": _post(b"Transfer-Encoding: chunked, identity", body=after),
        "TE identity": _post(b"Transfer-Encoding: identity", length, body=BODY + SECOND),
        "TE gzip, chunked": _post(b"Transfer-Encoding: gzip, chunked", body=after),
        "two TE": _post(chunked, b"Transfer-Encoding: identity", body=after),
        "TE with a space before the colon": _post(b"Transfer-Encoding : chunked", body=after),
        "TE with a vertical tab": _post(b"Transfer-Encoding: \x0bchunked", body=after),
        "TE in quotes": _post(b'Transfer-Encoding: "chunked"', body=after),
        "TE folded": _post(b"Transfer-Encoding:\r\n chunked", body=after),
        "folded header": _post(b"X-A: a\r\n b", length, body=BODY + SECOND),
        "header before the first": b"POST /v1/completions HTTP/1.1\r\n Host: localhost\r\n"
        + length
        + b"\r\n\r\n"
        + BODY
        + SECOND,
        "bare LF": _post(length, end=b"\n", body=BODY + SECOND),
        "one bare LF": _post(b"X-A: b\n" + chunked, length, body=BODY + SECOND),
        "bare CR in a value": _post(b"X-A: b\rc: d", length, body=BODY + SECOND),
        "NUL in a value": _post(b"X-A: b\0c", length, body=BODY + SECOND),
        "NUL in a name": _post(b"X\0A: b", length, body=BODY + SECOND),
        "header without a colon": _post(b"X-A", length, body=BODY + SECOND),
        "empty header name": _post(b": a", length, body=BODY + SECOND),
        "space in a header name": _post(b"X A: b", length, body=BODY + SECOND),
        "chunk extension": _post(chunked, body=b"%x;a=b\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY) + SECOND),
        "chunk size with 0x": _post(chunked, body=b"0x%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY) + SECOND),
        "chunk size overflow": _post(chunked, body=b"1000000000000001f\r\n%b\r\n0\r\n\r\n" % BODY + SECOND),
        "chunk size negative": _post(chunked, body=b"-1\r\n%b\r\n0\r\n\r\n" % BODY + SECOND),
        "chunk with bare LF": _post(chunked, body=b"%x\n%b\n0\n\n" % (len(BODY), BODY) + SECOND),
        "chunk longer than its size": _post(chunked, body=b"5\r\n%b\r\n0\r\n\r\n" % BODY + SECOND),
        "two hosts": _post(b"Host: other", length, body=BODY + SECOND),
        "no host": b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n"
        + length
        + b"\r\n\r\n"
        + BODY
        + SECOND,
        "HTTP/1.0 with TE": _post(chunked, first=b"POST /v1/completions HTTP/1.0", body=after),
        "HTTP/9.9": _post(length, first=b"POST /v1/completions HTTP/9.9", body=BODY + SECOND),
        "two spaces in the first line": _post(length, first=b"POST  /v1/completions HTTP/1.1", body=BODY + SECOND),
    }


async def f1(ctx: Context) -> list[Figure]:
    """Each on a connection of its own: one refusal, the connection closed, nothing behind it served."""
    accepted, second, unclosed = [], [], []
    cases = _smuggling()
    async with Server() as server:
        for name, data in cases.items():
            said, how = await raw(server.port, data, timeout=2)
            answers = split(said)
            statuses = [a.status for a in answers]
            if any(s < 400 for s in statuses[:1]):
                accepted.append(f"{name}: {statuses[0]}")
            if len(answers) > 1 or b"version" in said:
                second.append(f"{name}: {statuses}")
            if how == "timeout":
                unclosed.append(f"{name}: {statuses}")
        fine = await play(server.port, draw(ctx.rng("F1"), 4))
    note = "all: " + ", ".join(accepted)
    return [
        none_of("F1", "ambiguous requests accepted", accepted, len(cases), note if accepted else ""),
        none_of("F1", "second requests served", second, len(cases)),
        none_of("F1", "connections left open", unclosed, len(cases)),
        none_of("F1", "served afterwards: broken", [b for b in (fine.broken(),) if b], 1),
    ]


async def f2(ctx: Context) -> list[Figure]:
    """Header bombs."""
    length = b"Content-Length: 0"
    cases = {
        "1 MB header": _post(b"X-A: " + b"a" * 2**20, length),
        "20000 headers": _post(*(b"X-%d: a" % i for i in range(20_000)), length),
        "100 KB path": _post(length, first=b"GET /" + b"a" * 100_000 + b" HTTP/1.1"),
        "100 KB method": _post(length, first=b"A" * 100_000 + b" / HTTP/1.1"),
        "1 MB header name": _post(b"X" * 2**20 + b": a", length),
        "10 MB without a line end": b"GET / HTTP/1.1\r\nX: " + b"a" * 10 * 2**20,
        "1 MB of line ends": b"\r\n" * 2**19 + b"NO",
    }
    odd, growth, deadline = [], 0.0, ctx.size(3, 10)
    async with Server(header_timeout=deadline) as server:
        for data in cases.values():
            await raw(server.port, data, timeout=deadline + 2)  # the first time the allocator grows for good
        for name, data in cases.items():
            before = proc.sample(server.pid).rss
            said, how = await raw(server.port, data, timeout=deadline + 2)
            statuses = [a.status for a in split(said)]
            if statuses not in ([400], [408], [414], [431]) and not (how == "reset" and not statuses):
                odd.append(f"{name}: {statuses or how or 'closed'}")
            growth = max(growth, (proc.sample(server.pid).rss - before) / 2**20)
        trickled = await _header_trickle(server.port, 3.0 * deadline)
        fine = await play(server.port, draw(ctx.rng("F2"), 4))
    return [
        none_of("F2", "not refused with 400, 408, 414 or 431", odd, len(cases)),
        at_most("F2", "RSS growth (MB each)", 1, growth, len(cases)),
        at_most("F2", "endless header cut: seconds after the deadline", 2, trickled - deadline, 1),
        none_of("F2", "served afterwards: broken", [b for b in (fine.broken(),) if b], 1),
    ]


async def _header_trickle(port: int, seconds: float) -> float:
    """One header byte every half second, for ever: seconds until the server has enough."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    start = time.monotonic()
    writer.write(b"GET /version HTTP/1.1\r\nX-A: ")
    closed = asyncio.create_task(reader.read())
    try:
        while time.monotonic() - start < seconds and not closed.done():
            with contextlib.suppress(OSError):
                writer.write(b"a")
            await asyncio.wait({closed}, timeout=0.5)
        return time.monotonic() - start if closed.done() else float("inf")
    finally:
        closed.cancel()
        await asyncio.gather(closed, return_exceptions=True)
        writer.close()


async def f3(ctx: Context) -> list[Figure]:
    """Body bombs."""
    cap = 2**20
    encoded = gzip.compress(BODY)
    async with Server(max_body=cap) as server:
        huge = await ask(server.port, "POST", "/v1/completions", None, {"Content-Type": "application/json",
                                                                        "Content-Length": str(2**30)}, timeout=5)  # fmt: skip
        before = proc.sample(server.pid).rss
        read = proc.bytes_read(server.pid)
        endless, _ = await _endless(server.port, cap)
        read = proc.bytes_read(server.pid) - read
        growth = proc.sample(server.pid).rss - before
        gzipped = await ask(server.port, "POST", "/v1/completions", encoded, {"Content-Encoding": "gzip"})
        short = await raw(
            server.port, head("POST", "/v1/completions", length=len(BODY) + 50) + BODY, timeout=3, half_close=True
        )
        early = split(short[0])
        fine = await play(server.port, draw(ctx.rng("F3"), 4))
    odd = [
        f"{name}: {a.status} {a.error}"
        for name, a, wanted in (
            ("1 GB announced", huge, (413,)),
            ("endless chunks", endless, (413,)),
            ("gzip", gzipped, (400, 415)),
            ("shorter than announced", early[0] if early else Answer(400), (400, 408)),
        )
        if a.status not in wanted
    ]
    return [
        none_of("F3", "not refused with the right status", odd, 4),
        at_least("F3", "bytes read of an endless body (KB): up to the cap", 1023, read / 1024, 1),
        # Read and dropped, so that the refusal is not lost by a reset (http.connection.LINGER_BYTES).
        at_most("F3", "bytes read past the cap (MB)", 65, (read - cap) / 2**20, 1),
        at_most("F3", "RSS growth / cap", 2, growth / cap, 1),
        none_of("F3", "served afterwards: broken", [b for b in (fine.broken(),) if b], 1),
    ]


async def _endless(port: int, cap: int) -> tuple[Answer, int]:
    """Chunks until the server ends it, 64 caps at most: its answer, and the bytes it took."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(_post(b"Transfer-Encoding: chunked"))
    said, sent = asyncio.create_task(reader.read()), 0
    try:
        async with asyncio.timeout(20):
            while not said.done() and sent < 64 * cap:
                writer.write(b"4000\r\n" + b"a" * 0x4000 + b"\r\n")
                await writer.drain()
                sent += 0x4000
                await asyncio.sleep(0)
            answers = split(await said)
    except TimeoutError:
        return Answer(error="timeout"), sent
    except OSError:
        # The answer may have come before the RST that ended the sending.
        got = said.result() if said.done() and not said.exception() else b""
        answers = split(got) or [Answer(error="reset while sending, no answer seen")]
    finally:
        said.cancel()
        await asyncio.gather(said, return_exceptions=True)
        writer.close()
    return answers[0] if answers else Answer(error="closed without an answer"), sent


ROWS = (Row(("F1",), f1, alone=False), Row(("F2",), f2, alone=False), Row(("F3",), f3, alone=False))
