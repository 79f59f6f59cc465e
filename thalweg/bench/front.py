"""`thalweg bench front`: cost of a request and of a token in the server's process, and the rates that follow.

A server is started on the null device, where the engine computes nothing, and one client sends requests. Only the processor
time of the server's process counts (`/proc/PID/stat`), not that of its engine or of the client. A slow client bounds the rate
reached, but not the rate reported.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from thalweg.bench.client import Client, Outcome, address
from thalweg.bench.common import at_least, check_output, write
from thalweg.bench.startup import server_address
from thalweg.errors import ThalwegError
from thalweg.host.processes import CommandProcess

ENOUGH = 1000
"""Requests a second that one process should serve."""
FLAGS = ("--device", "null", "--port", "0", "--disable-uvicorn-access-log", "--max-model-len", "2048")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--num-prompts", type=int, default=2000, help="requests of each kind (default 2000)")
    add("--concurrency", type=int, default=16, help="requests open at once (default 16)")
    add("--output-len", type=int, default=128, help="tokens of a streamed answer (default 128)")
    add("--prompt", default="The river is " * 8, help="text of each prompt")
    add("--timeout", type=float, default=60, help="seconds the server may take to start (default 60)")
    add("--output-json", metavar="FILE", help="write the results there too")


def main(a: argparse.Namespace) -> dict[str, Any]:
    """Run and print. Microseconds of processor time by kind, and the rates that follow."""
    at_least(1, num_prompts=a.num_prompts, concurrency=a.concurrency)
    at_least(2, output_len=a.output_len)
    check_output(a.output_json)
    if not Path("/proc/self/stat").exists():
        raise ThalwegError("bench front: reads /proc, which this system has not")
    with tempfile.TemporaryDirectory(prefix="thalweg-front-") as folder:
        log = Path(folder, "log")
        process = CommandProcess([sys.executable, "-m", "thalweg", "serve", *FLAGS], log)
        try:
            result = asyncio.run(_measure(a, process.pid, _ready(process, log, a.timeout)))
        finally:
            process.end()
    write(a.output_json, result)
    print(table(result))
    return result


async def _measure(a: argparse.Namespace, pid: int, url: str) -> dict[str, Any]:
    to = address(url, "", 0, "/v1/completions", insecure=False)
    client = Client(to, {}, keep_text=False)
    body = {"prompt": a.prompt, "ignore_eos": True, "temperature": 0, "stream": True}
    kinds = {"whole": {**body, "max_tokens": 1}, "tokens": {**body, "max_tokens": a.output_len}}
    rows: dict[str, dict[str, float]] = {}
    try:
        await _ask(client, kinds["whole"], min(200, a.num_prompts), a.concurrency)  # loads everything the first request needs
        for kind, fields in kinds.items():
            before, began = _seconds(pid), time.monotonic()
            outcomes = await _ask(client, fields, a.num_prompts, a.concurrency)
            spent, took = _seconds(pid) - before, time.monotonic() - began
            if failed := next((o.error for o in outcomes if not o.ok), ""):
                raise ThalwegError(f"bench front: a request failed: {failed[:300]}")
            rows[kind] = {"cpu_us": spent / a.num_prompts * 1e6, "requests_per_second": a.num_prompts / took}
    finally:
        await client.close()
    request = rows["whole"]["cpu_us"]
    token = max(0.0, rows["tokens"]["cpu_us"] - request) / (a.output_len - 1)
    return {
        "cpu_us_per_request": request, "cpu_us_per_token": token, "requests_per_second_at_most": 1e6 / max(request, 1e-9),
        "tokens_per_second_at_most": 1e6 / max(token, 1e-9), "concurrency": a.concurrency, "output_len": a.output_len,
        "measured": rows,
    }  # fmt: skip


async def _ask(client: Client, fields: dict[str, Any], count: int, together: int) -> list[Outcome]:
    left = iter(range(count))
    outcomes: list[Outcome] = []

    async def one() -> None:
        for _ in left:
            outcomes.append(await client.stream(fields))

    await asyncio.gather(*(one() for _ in range(together)))
    return outcomes


def table(result: dict[str, Any]) -> str:
    most = result["requests_per_second_at_most"]
    lines = [
        f"processor time of the server's process, {result['concurrency']} requests at once, streamed",
        f"a request of one token   {result['cpu_us_per_request']:8.0f} us  so at most {most:9.0f} requests a second",
        f"each token after it      {result['cpu_us_per_token']:8.1f} us  so at most "
        f"{result['tokens_per_second_at_most']:9.0f} tokens a second",
    ]
    if most < ENOUGH:
        lines.append(f"one process serves less than {ENOUGH} such requests a second: run several servers behind a router")
    return "\n".join(lines)


def _seconds(pid: int) -> float:
    """Processor time of a process so far, its children left out."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _ready(process: CommandProcess, log: Path, timeout: float) -> str:
    """The server's address, once it serves."""
    from urllib import request

    until = time.monotonic() + timeout
    while time.monotonic() < until and process.returncode is None:
        if url := server_address(log):
            try:
                request.urlopen(f"{url}/readyz", timeout=5).read()
            except OSError:
                pass
            else:
                return url
        time.sleep(0.02)
    raise ThalwegError(f"bench front: the server did not start: {log.read_text(errors='replace')[-500:]}")
