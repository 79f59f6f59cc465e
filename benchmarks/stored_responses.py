"""Does the memory of a server that keeps responses stay flat? Responses are made, some of them one conversation, and kept.

Run: python benchmarks/stored_responses.py [--responses 2000] [--store-bytes 4194304] [--clients 8]

The server has the device `null`. Its memory (resident, engine included) is read forty times while responses come in. It fails
where the last three quarters grew it by more than a sixteenth, 8 MiB at the least.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

TURNS = 6
"""Responses of one conversation."""
TEXT = "the same again, and then some more of it. " * 8
LEAST = 8 << 20


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--responses", type=int, default=2000)
    parser.add_argument("--store-bytes", type=int, default=4 << 20)
    parser.add_argument("--clients", type=int, default=8)
    args = parser.parse_args(words)
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    command = [sys.executable, "-m", "thalweg", "serve", "--device", "null", "--port", str(port)]
    command += ["--responses-store-bytes", str(args.store_bytes)]
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            seen = asyncio.run(_ask(args, f"http://127.0.0.1:{port}", server.pid))
        finally:
            server.terminate()
            server.wait(60)
    early, last = seen[len(seen) // 4], seen[-1]
    grown = last - early
    flat = grown <= max(LEAST, early // 16)
    kib = args.store_bytes >> 10
    print(f"{args.responses} responses, store of {kib} KiB: {early >> 20} MiB after a quarter, {last >> 20} MiB at the end")
    return 0 if flat else 1


async def _ask(args: argparse.Namespace, url: str, pid: int) -> list[int]:
    """Resident bytes, forty times."""
    left, seen, every = args.responses, [], max(1, args.responses // 40)
    began = time.monotonic()
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        await _up(client)

        async def one() -> None:
            nonlocal left
            before = None
            for turn in range(1 << 62):
                if left <= 0:
                    return
                left -= 1
                if left % every == 0:
                    seen.append(_resident(pid))
                    print(f"{args.responses - left:8} {seen[-1] >> 20:6} MiB {time.monotonic() - began:7.0f} s", flush=True)
                body = {"input": TEXT, "max_output_tokens": 4, "store": True}
                if before is not None and turn % TURNS:
                    body["previous_response_id"] = before
                try:
                    answer = await client.post("/v1/responses", json=body)
                except httpx.TransportError as e:  # a connection that was idle too long, or a server that is gone
                    if not Path(f"/proc/{pid}/fd").exists() or (await client.get("/health")).status_code != 200:
                        raise
                    print(f"asked again: {e!r}", flush=True)
                    continue
                if answer.status_code == 404:  # what it follows was pushed out
                    before = None
                    continue
                answer.raise_for_status()
                before = answer.json()["id"]

        await asyncio.gather(*(one() for _ in range(args.clients)))
    return seen


async def _up(client: httpx.AsyncClient) -> None:
    for _ in range(600):
        try:
            if (await client.get("/health")).status_code == 200:
                return
        except httpx.TransportError:
            pass
        await asyncio.sleep(0.1)
    raise SystemExit("the server did not start")


def _resident(pid: int) -> int:
    """Bytes of a process and of its children."""
    total, pids = 0, [pid]
    while pids:
        process = Path(f"/proc/{pids.pop()}")
        try:
            total += int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            pids += map(int, (process / f"task/{process.name}/children").read_text().split())
        except OSError:
            continue
    return total


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
