"""The chaos rig: faults and load against live servers on loopback, every token compared with the oracle.

    python tests/chaos --budget short --seed 1 --rows A1 C1 --json build/chaos.json

Prints one table; the exit status is 1 if a row fails. A row that cannot run fails, with the reason.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import platform
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "rigs"))

from chaosrig.context import Context, Row
from chaosrig.table import Figure, as_json, render
from rows import ROWS

BESIDE = 3
"""Rows beside each other, of those that may be."""


async def run_row(row: Row, ctx: Context) -> list[Figure]:
    """The row's figures; one failed figure per id if it could not be carried through."""
    limit = row.patience * ctx.size(1, 10)
    try:
        async with asyncio.timeout(limit):
            return [replace(f, seed=ctx.seed) for f in await row.run(ctx)]
    except TimeoutError as e:
        return _failed(row, ctx, f"timeout: {e}" if str(e) else f"not finished within {limit:g} s")
    except Exception as e:
        return _failed(row, ctx, f"{type(e).__name__}: {e}"[:400])


def _failed(row: Row, ctx: Context, why: str) -> list[Figure]:
    return [Figure(i, "carried through", "yes", "no", False, 0, why, ctx.seed) for i in row.ids]


async def run_rows(rows: list[Row], ctx: Context) -> list[Figure]:
    """Rows that must be alone one after another, then the others a few at a time; figures in the order of `rows`. SIGINT or
    SIGTERM ends it with its servers; rows not finished then have failed."""
    figures: dict[tuple[str, ...], list[Figure]] = {}
    task = asyncio.create_task(_run_rows(rows, ctx, figures))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()
    return [f for row in rows for f in figures.get(row.ids) or _failed(row, ctx, "interrupted")]


async def _run_rows(rows: list[Row], ctx: Context, figures: dict[tuple[str, ...], list[Figure]]) -> None:
    beside = asyncio.Semaphore(BESIDE)

    async def one(row: Row) -> None:
        async with beside if not row.alone else contextlib.nullcontext():
            start = time.monotonic()
            got = figures[row.ids] = await run_row(row, ctx)
            verdict = "pass" if all(f.ok for f in got) else "FAIL"
            print(f"{' '.join(row.ids):<12} {verdict} {time.monotonic() - start:6.1f} s", file=sys.stderr, flush=True)

    for row in rows:
        if row.alone:
            await one(row)
    async with asyncio.TaskGroup() as group:
        for row in sorted(rows, key=lambda r: -r.patience):  # the longest first
            if not row.alone:
                group.create_task(one(row))


def select(names: list[str]) -> list[Row]:
    """Scenarios that report one of these rows (A1) or letters (A); all of them without names."""
    unknown = [n for n in names if not any(i == n or i[0] == n for row in ROWS for i in row.ids)]
    if unknown:
        raise SystemExit(f"no such row: {' '.join(unknown)}; rows: {' '.join(i for row in ROWS for i in row.ids)}")
    return [row for row in ROWS if not names or any(i in names or i[0] in names for i in row.ids)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--budget", choices=("short", "full"), default="short", help="short: under 3 minutes; full: under 30")
    parser.add_argument("--seed", type=int, default=None, help="default: drawn, and printed")
    parser.add_argument("--rows", nargs="*", default=[], metavar="ROW", help="rows (A1) or letters (A); default: all")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write the figures there too")
    args = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if args.seed is None else args.seed
    start = time.monotonic()
    figures = asyncio.run(run_rows(select([n.upper() for n in args.rows]), Context(seed, args.budget == "full")))
    seconds = time.monotonic() - start
    print(render(figures))
    print(f"budget {args.budget}, seed {seed}, {seconds:.0f} s")
    if args.json:
        facts = {
            "budget": args.budget, "seed": seed, "seconds": round(seconds, 1), "cpus": os.cpu_count(),
            "python": platform.python_version(), "system": platform.platform(),
        }  # fmt: skip
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(as_json(figures, facts) + "\n")
    return 0 if all(f.ok for f in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
