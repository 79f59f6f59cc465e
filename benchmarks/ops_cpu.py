"""Kernels of the CPU platform side by side in one run: `python benchmarks/ops_cpu.py [--threads N]`.

Every line is one kernel on one workload of a small model (hidden 1,024, vocabulary 151,936), with the time relative to
the reference body's in the same run; then attention of 16 decoding sequences with 256 tokens each, beside the bare
gather of their cache. Quote ratios: times drift with what else the machine does.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from thalweg.backends.cpu import CpuOptions, CpuPlatform
from thalweg.hal.attention import AttnSpec
from thalweg.hal.platform import Device, Place
from thalweg.hal.step import StateBox, StepBatch, StepResult
from thalweg.hal.testing import measure, sequences

SEQS, CONTEXT, BLOCK = 16, 256, 16


def ops(device: Device) -> None:
    for work in measure.workloads():
        dtype = device.info.dtypes[0] if "bfloat16" in work.op.tolerances else "float32"
        records = list(measure.perf(device, work, dtype))
        for r in records:
            ratio = records[-1]["ms"] / r["ms"]
            rate = f"{r['gflop_per_s']:8.1f} GFLOP/s" if r["gflop_per_s"] else f"{r['gb_per_s']:8.1f} GB/s   "
            name = f"{r['op']:14} {r['case']:22} {r['dtype']:9} {r['kernel']:14}"
            print(f"{name} {r['ms']:10.3f} ms {rate} {ratio:6.2f}x", flush=True)


def attention(device: Device) -> None:
    spec = AttnSpec(16, 8, 128, 128**-0.5, device.info.dtypes[0])
    rng = np.random.default_rng(0)
    stories = [sequences.story(rng, spec, CONTEXT, 1) for _ in range(SEQS)]
    table, blocks = sequences.tables(rng, stories, BLOCK)
    batch = sequences.batch_of(table, [CONTEXT - 1] * SEQS, [1] * SEQS)
    arrays = sequences.rows(stories, [CONTEXT - 1] * SEQS, [1] * SEQS)
    q, k, v = (torch.from_numpy(a).to(getattr(torch, spec.dtype)) for a in arrays)
    for backend in device.attention:
        layout = backend.layout(spec, BLOCK)
        box = StateBox(device.alloc_kv(layout, blocks))

        def step(params: object, kv: object, b: StepBatch, backend: object = backend) -> tuple[object, StepResult]:
            for _ in range(28):  # a model's layers share one plan
                _, kv = backend.attend(q, k, v, kv, b, 0, spec)  # type: ignore[attr-defined]
            return kv, StepResult(b.slots[:, None], b.query)

        run = device.compile(step, None, box, None, None)

        def launch(params: object, run: object = run, backend: object = backend) -> None:
            batch.plans = (backend.plan(batch, 0, spec, None),)  # type: ignore[attr-defined]
            run(batch).result()  # type: ignore[operator]

        seconds = measure.median_seconds(device, launch, [None], 7) / 28
        kv, index = box.value, torch.from_numpy(table.reshape(-1)).long()
        gather = measure.median_seconds(device, lambda c, i: c.index_select(0, i), [kv, index], 7)
        size = SEQS * CONTEXT // BLOCK * layout.bytes_per_block
        print(f"attention      decode {SEQS} x {CONTEXT}        {spec.dtype:9} {backend.name:14} {seconds * 1e3:10.3f} ms "
              f"{size / seconds / 1e9:8.1f} GB/s    {gather / seconds:6.2f}x of a bare gather")  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=0)
    device = CpuPlatform().open(Place(), CpuOptions(parser.parse_args().threads))
    print(f"{device.info.name}, {device.info.cores} threads, {dict(device.info.notes)}")
    attention(device)
    ops(device)
