"""Times of kernels, compared with the others of the same op, and the kernel that serves each use: modes perf and support."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from thalweg.hal import ops
from thalweg.hal.device import Device
from thalweg.hal.op import Binder, Kernel, Op, Sample
from thalweg.hal.step import StateBox, StepBatch, StepResult
from thalweg.hal.testing import cases

HIDDEN, FFN, VOCAB = 1024, 3072, 151_936
"""The shape of a small model of today (Qwen3-0.6B)."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One measured use. bytes: the least that must be read and written. flops: multiplications and additions."""

    op: Op
    sample: Sample
    bytes: int
    flops: int = 0


def _floats(*shape: int) -> Callable[[np.random.Generator], np.ndarray]:
    return lambda rng: rng.standard_normal(shape, np.float32).astype(np.float16)


def _linear(m: int, k: int, n: int) -> Workload:
    sample = Sample(f"{m}x{k}x{n}", lambda rng: (_floats(m, k)(rng), _floats(n, k)(rng) * np.float16(k**-0.5)))
    return Workload(ops.linear, sample, 2 * (m * k + k * n + m * n), 2 * m * k * n)


def _rows(op: Op, m: int, width: int, out: int, **static: Any) -> Workload:
    arrays = 2 if op is ops.add_rms_norm else 1
    weight = () if op is ops.act_and_mul else (width,)

    def make(rng: np.random.Generator) -> Sequence[Any]:
        x = [_floats(m, width)(rng) for _ in range(arrays)]
        return [*x, _floats(*weight)(rng)] if weight else x

    return Workload(op, Sample(f"{m}x{width}", make, static), 2 * m * (arrays * width + out))


def _draw(op: Op, m: int, what: str, **static: Any) -> Workload:
    def make(rng: np.random.Generator) -> Sequence[Any]:
        logits = rng.standard_normal((m, VOCAB), np.float32) * np.float32(2.5)
        k, p = (50, 1) if what == "top_k" else (0, 0.95)
        requested = np.full(m, k, np.int32), np.full(m, p, np.float32), np.zeros(m, np.float32)
        if op in (ops.truncate, ops.draw):
            logits[:, :40] += np.linspace(20, 12, 40, dtype=np.float32)  # a model's distribution has a few likely tokens
        if op is ops.truncate:
            return logits, *requested
        if op is ops.logprobs:
            return logits, np.zeros(m, np.int32)
        seed = rng.integers(0, 2**31, (m, 2)).astype(np.int32)
        if op is ops.draw:
            return logits, np.full(m, 0.8, np.float32), *requested, seed, np.arange(m, dtype=np.int32)
        return logits, np.full(m, float(what == "random"), np.float32), seed, np.arange(m, dtype=np.int32)

    return Workload(op, Sample(f"{m}x{VOCAB}-{what}", make, static), 4 * m * VOCAB)


def workloads() -> list[Workload]:
    """The work of a small model's step, at the batch sizes that matter."""
    out = [_linear(m, k, n) for k, n in ((HIDDEN, 2 * FFN), (FFN, HIDDEN)) for m in (1, 16, 32, 128, 1024)]
    out += [_linear(m, HIDDEN, VOCAB) for m in (1, 16)]
    for m in (1, 32, 1024):
        out += [_rows(ops.rms_norm, m, HIDDEN, HIDDEN, eps=1e-6), _rows(ops.add_rms_norm, m, HIDDEN, 2 * HIDDEN, eps=1e-6)]
        out += [_rows(ops.act_and_mul, m, 2 * FFN, FFN, act="silu")]
    for m in (1, 16):
        out += [_draw(ops.sample, m, "greedy", random=False), _draw(ops.sample, m, "random", random=True)]
        out += [
            _draw(ops.truncate, m, "top_k"),
            _draw(ops.truncate, m, "top_p"),
            _draw(ops.draw, m, "top_p"),
            _draw(ops.logprobs, m, "k5", k=5, normalise=True),
        ]
    return out


def perf(device: Device, work: Workload, dtype: str, repeats: int = 7) -> Iterator[dict[str, Any]]:
    """One record per kernel that supports the case, the reference body last. Each run is one compiled step."""
    args = cases.host_arguments(work.op, work.sample, dtype)
    choices: list[Kernel | None] = [k for k in cases.kernels_of(device, work.op) if k is not None]
    for kernel in [*choices, None]:
        bound = cases.bind(work.op, work.sample, args, dtype, kernel)
        if kernel and bound.choice.kernel != kernel.name:
            continue
        placed = cases.put(device, work.op, bound, args)
        seconds = median_seconds(device, bound, placed, repeats)
        yield {
            "op": work.op.name, "case": work.sample.name, "dtype": dtype, "kernel": kernel.name if kernel else "reference",
            "ms": round(seconds * 1e3, 4), "gb_per_s": round(work.bytes / seconds / 1e9, 2),
            "gflop_per_s": round(work.flops / seconds / 1e9, 1),
        }  # fmt: skip


def median_seconds(device: Device, call: Callable[..., Any], args: Sequence[Any], repeats: int) -> float:
    """Of call(*args) as one compiled step, after two runs to warm up."""

    def step(params: Any, state: Any, batch: StepBatch) -> tuple[Any, StepResult]:
        out, tokens = call(*params), batch.slots[:, None]
        if device.pads:  # it compiles steps, and a compiler drops unused results
            first = out[0] if isinstance(out, tuple) else out
            tokens = tokens + first.reshape(-1)[-1:].to(tokens.dtype)
        return state, StepResult(tokens, batch.query)

    run = device.compile(step, list(args), StateBox({}), None, None)
    batch, times = cases.empty_batch(), []
    for i in range(repeats + 2):
        device.synchronize()
        start = time.perf_counter()
        run(batch).result()
        device.synchronize()
        if i >= 2:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def support(device: Device) -> str:
    """The support matrix: every op and dtype, which kernel a layer gets, how far it was proven here, and why the
    preferred kernels were not taken. "executed" = it ran on this device just now and was within tolerance."""
    lines = [
        f"## {device.info.kind}: {device.info.name}",
        "",
        "| op | dtype | kernel | layer reached | same bits in any batch | not taken |",
        "|---|---|---|---|---|---|",
    ]
    for op in ops.all_ops().values():
        for dtype in cases.dtypes_of(op):
            sample = op.samples[0]
            args = cases.host_arguments(op, sample, dtype)
            bound = Binder(device.kernels, bodies_invariant=device.bodies_invariant).bind(
                op, **cases.spec(op, sample, args, dtype)
            )
            got = cases.run(device, bound, cases.put(device, op, bound, args))
            worst = max(cases.difference(g, w) for g, w in zip(got, cases.reference(op, sample, args), strict=True))
            reached = "executed" if worst <= op.tolerances.get(dtype, 0.0) else f"wrong by {worst:.2g}"
            if bound.choice.kernel == "reference":
                reached = f"reference body, {reached}"
            why = "; ".join(f"{k}: {r}" for k, r in bound.choice.refused)
            same = "yes" if bound.choice.batch_invariant else "not claimed"
            lines.append(f"| {op.name} | {dtype} | {bound.choice.kernel} | {reached} | {same} | {why} |")
    return "\n".join(lines + _attention_lines(device)) + "\n"


def _attention_lines(device: Device) -> list[str]:
    from thalweg.hal.testing.test_attention import SPECS  # the same kinds that the kit tests

    lines = ["", "| attention | dtype | backend | same bits in any batch | not taken |", "|---|---|---|---|---|"]
    for name, spec in SPECS.items():
        for dtype in device.info.dtypes:
            spec = replace(spec, dtype=dtype)
            refusals = [(a, a.supports(spec)) for a in device.attention]
            taken = next((a for a, why in refusals if why is None), None)
            why = "; ".join(f"{a.name}: {r}" for a, r in refusals if r is not None)
            same = "yes" if taken and taken.batch_invariant else "not claimed" if taken else "-"
            lines.append(f"| {name} | {dtype} | {taken.name if taken else 'none'} | {same} | {why} |")
    return lines
