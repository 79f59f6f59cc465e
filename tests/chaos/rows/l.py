"""L: random traces. The control plane under random configurations, loads and faults, against the oracle, and its state
machines, far beyond what a test run has time for."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import chaosrig
from chaosrig.context import Context, Row
from chaosrig.table import Figure, at_least, none_of

RIG = Path(chaosrig.__path__[0])
SIMULATOR = RIG.parents[1] / "rigs" / "simulator.py"
PROCESSES = 1
"""At a time, per row: other rows run beside."""


async def _run(script: Path, *words: object) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(script), *map(str, words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        said, _ = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    return process.returncode or 0, said.decode(errors="replace")


async def l1(ctx: Context) -> list[Figure]:
    """Each seed is a configuration, a load and faults (aborts, crashes with replay, withheld blocks, NaN rows, prefix sharing,
    preemption); each request must come out as it does alone."""
    wanted, requests, seeds, mismatches = ctx.size(1_000, 100_000), 0, ctx.size(85, 500), []
    start, turn = ctx.seed * 1_000_000, 0
    while requests < wanted and not mismatches:
        starts = [start + (turn + i) * seeds for i in range(PROCESSES)]
        turn += PROCESSES
        for code, said in await asyncio.gather(*(_run(SIMULATOR, "--seeds", seeds, "--start", s) for s in starts)):
            if found := re.search(r"requests (\d+)", said):
                requests += int(found[1])
            if code or not found:
                mismatches.append(said.strip()[-400:])
    return [
        none_of("L1", "mismatches", mismatches, requests),
        at_least("L1", "traced requests", wanted, requests, turn * seeds, note="n: seeds"),
    ]


async def l2(ctx: Context) -> list[Figure]:
    wanted = ctx.size(6_000, 1_000_000)
    start = time.monotonic()
    runs = await asyncio.gather(*(_run(RIG / "machines.py", wanted // PROCESSES, ctx.seed * 10 + i) for i in range(PROCESSES)))
    examples = [said.strip()[-400:] for code, said in runs if code]
    steps = sum(json.loads(said.strip().splitlines()[-1])["steps"] for code, said in runs if not code)
    rate = steps / (time.monotonic() - start)
    return [
        none_of("L2", "counter-examples", examples, steps),
        at_least("L2", "steps", wanted, steps, steps, note=f"{rate:.0f} steps/s"),
    ]


ROWS = (Row(("L1",), l1, alone=False, patience=150), Row(("L2",), l2, alone=False, patience=150))
