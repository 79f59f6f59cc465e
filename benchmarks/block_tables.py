"""What block tables cost the host per decode step of a GPU: sent whole as copies, or kept there and told what changed.

python benchmarks/block_tables.py [--seqs 512] [--blocks 8193] [--steps 48]

One sequence is as long as it may be, which makes every table as wide; the others are at --context tokens. Measured is what the
control plane and the device's host side do with tables and batches: filling them, padding, packing. The device does nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from types import SimpleNamespace
from typing import Any

import numpy as np

from thalweg.backends.torch_gpu.device import GpuDevice
from thalweg.backends.torch_gpu.host import HostRuntime, LateEvent, LateStream
from thalweg.backends.torch_gpu.library import KernelSet
from thalweg.engine.control.batch import BatchBuilder
from thalweg.engine.worker.runner import Runner
from thalweg.hal.device import DeviceInfo
from thalweg.hal.step import SamplingArrays, StateBox, StepBatch, StepShape

BLOCK = 16


class Nothing(LateStream):
    """A stream whose device takes no time."""

    def run(self, work: Any) -> None:
        return

    def wait(self, event: Any) -> None:
        return

    def record(self) -> LateEvent:
        event = super().record()
        event.fired = True
        return event


def measure(seqs: int, blocks: int, context: int, steps: int, kept: bool) -> float:
    """Median microseconds of a step."""
    runtime = HostRuntime(late=False)
    device = GpuDevice(DeviceInfo("x", "x", 1 << 30, 1, ("float32",)), runtime, KernelSet(), graphs=False)
    runtime.compute, runtime.copies = Nothing(False), Nothing(False)
    shape = StepShape(seqs, seqs, blocks, True)
    runner = Runner(lambda s, f: device.compile(_no_step, None, StateBox({}), s, f), (), (shape,))
    table = np.zeros((seqs + 1, blocks), np.int32)
    lengths = np.array([0, *(context + i % BLOCK for i in range(seqs))])
    lengths[1] = (blocks - 1) * BLOCK - steps
    slots: Any = SimpleNamespace(count=seqs, capacity=np.zeros(seqs + 1, np.int32), serial=np.arange(seqs + 1, dtype=np.int64))

    def copies(rows: np.ndarray, context: np.ndarray) -> tuple[np.ndarray]:
        return (table[rows, : int(slots.capacity[rows].max()) // BLOCK],)

    group = SimpleNamespace(growing=table, spec=SimpleNamespace(block_tokens=BLOCK))
    cache: Any = SimpleNamespace(groups=[group], tables=copies)
    builder = BatchBuilder(slots, cache, tables_kept=kept)
    rows, i32 = np.arange(1, seqs + 1, dtype=np.int32), np.int32
    sampling, times = SamplingArrays.greedy(seqs), []
    for step in range(steps + 4):
        slots.capacity[1:] = -(-(lengths[1:] + step) // BLOCK) * BLOCK
        table[rows, slots.capacity[1:] // BLOCK - 1] = step + 1
        start = time.perf_counter()
        batch = StepBatch(
            tokens=rows, token_seq=rows - 1, positions=rows, slots=rows, context=rows, query=np.ones(seqs, i32),
            last_row=rows - 1, emit=np.ones(seqs, bool), block_tables=builder._tables(rows, rows), sampling=sampling, uniform=1,
        )  # fmt: skip
        runner.launch(batch)
        times.append(time.perf_counter() - start)
    return statistics.median(times[4:]) * 1e6


def _no_step(params: Any, state: Any, batch: StepBatch) -> Any:
    raise RuntimeError("the device does nothing")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seqs", type=int, default=512)
    parser.add_argument("--blocks", type=int, default=8193, help="columns of the widest table")
    parser.add_argument("--context", type=int, default=1000, help="tokens of all sequences but the longest")
    parser.add_argument("--steps", type=int, default=48)
    a = parser.parse_args()
    rounds = [[measure(a.seqs, a.blocks, a.context, a.steps, kept) for kept in (False, True)] for _ in range(3)]
    copies, kept = (statistics.median(r[i] for r in rounds) for i in (0, 1))
    report = {"benchmark": "block_tables", "seqs": a.seqs, "blocks": a.blocks}
    print(json.dumps({**report, "copies_us": round(copies, 1), "kept_us": round(kept, 1), "ratio": round(copies / kept, 1)}))


if __name__ == "__main__":
    main()
