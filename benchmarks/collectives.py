"""What one sum over the ranks of a model costs here: over shared memory, by gloo, and compared with a copy of as many bytes.

    python benchmarks/collectives.py [--ranks 2] [--dtype bfloat16] [--repeats 400]

Each turn runs every method once, on all ranks, so that a busy machine slows all alike. Microseconds are medians of rank 0,
with the fifth percentile in parentheses, which other work disturbs least. "gloo in order" is TorchCommunicator, which gathers
and sums by rank.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

METHODS = ("shared memory", "gloo", "gloo in order", "copy")
SHAPES = [(rows, width) for rows in (1, 16, 512) for width in (1024, 4096)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--repeats", type=int, default=400)
    args = parser.parse_args()
    shared = Path("/dev/shm")
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        processes = [context.Process(target=run_rank, args=(r, args, folder, results)) for r in range(args.ranks)]
        for p in processes:
            p.start()
        report = results.get()
        for p in processes:
            p.join()
    print_table(report)
    print(json.dumps({"ranks": args.ranks, "dtype": args.dtype, "microseconds": report}, indent=2))


def print_table(report: dict[str, dict[str, dict[str, float]]]) -> None:
    """Ratios are those of shared memory to the other."""
    print(f"{'rows x width':>14}" + "".join(f"{name:>18}" for name in METHODS) + "   to gloo, to a copy", file=sys.stderr)
    for shape, times in report.items():
        cells = "".join(f"{t['median']:>10.0f} ({t['p5']:5.0f})" for t in times.values())
        ours = times[METHODS[0]]
        ratios = (f"{ours['median'] / times[n]['median']:.2f} ({ours['p5'] / times[n]['p5']:.2f})" for n in ("gloo", "copy"))
        print(f"{shape:>14}{cells}   {', '.join(ratios)}", file=sys.stderr)


def run_rank(rank: int, args: argparse.Namespace, folder: str, results: Any) -> None:
    import torch
    import torch.distributed as dist

    from thalweg.backends.cpu.native import open_library
    from thalweg.backends.cpu.shm import ShmCommunicator
    from thalweg.backends.torch_comm import TorchCommunicator
    from thalweg.hal.platform import RENDEZVOUS, Place

    torch.set_num_threads(1)
    place = Place(rank, args.ranks, (rank,), {RENDEZVOUS: f"file://{folder}"})
    shm, gloo = ShmCommunicator(open_library(1), place), TorchCommunicator("gloo", place)
    report = {}
    for rows, width in SHAPES:
        x = torch.randn(rows, width).to(getattr(torch, args.dtype))
        y, work = torch.empty_like(x), x.clone()
        calls = (
            partial(shm.all_reduce, work), partial(dist.all_reduce, work), partial(gloo.all_reduce, x), partial(y.copy_, x),
        )  # fmt: skip
        methods: dict[str, Callable[[], Any]] = dict(zip(METHODS, calls, strict=True))
        times: dict[str, list[float]] = {name: [] for name in methods}
        for turn in range(args.repeats + 20):
            for name, method in methods.items():
                work.copy_(x)
                shm.all_reduce(torch.zeros(1))  # ranks begin together
                begun = time.perf_counter()
                method()
                if turn >= 20:
                    times[name].append((time.perf_counter() - begun) * 1e6)
        report[f"{rows} x {width}"] = {name: summary(t) for name, t in times.items()}
    if rank == 0:
        results.put(report)
    shm.all_reduce(torch.zeros(1))
    gloo.close()
    shm.close()


def summary(times: list[float]) -> dict[str, float]:
    return {"median": statistics.median(times), "p5": sorted(times)[len(times) // 20]}


if __name__ == "__main__":
    main()
