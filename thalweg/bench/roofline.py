"""`thalweg bench roofline`: what a model's steps must read and compute, what this device can, and how much of it is used.

Two ceilings are measured on the device in the same run, before and after the model, each with the fastest of its kernels for
linear layers: bytes read per second by one row times a matrix far larger than any cache, and operations per second of many rows
times a matrix. A phase's bound is the larger of its two times at these ceilings; its fraction is that bound over the time
measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from thalweg.bench.common import at_least, check_output, random_prompts, write
from thalweg.checkpoint.config import read_config
from thalweg.config import EngineArgs
from thalweg.errors import ConfigError
from thalweg.hal.kv import BYTES, kept_bytes
from thalweg.models import registry
from thalweg.models.settings import Settings
from thalweg.params import SamplingParams
from thalweg.quantization.online import bytes_of, facts, formats, rounded

REFUSED = ()
READ, RATE = (1, 4096, 32768), (512, 2048, 2048)
"""Rows, inputs, outputs of the two measurements."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--input-len", type=int, default=512, help="prompt tokens (default 512)")
    parser.add_argument("--output-len", type=int, default=64, help="generated tokens (default 64)")
    parser.add_argument("--batch-size", type=int, default=1, help="requests at once (default 1)")
    parser.add_argument("--num-iters", type=int, default=3, help="measured runs, after one that is not (default 3)")
    parser.add_argument("--output-json", metavar="FILE", help="write the results there too")


@dataclass(frozen=True, slots=True)
class Work:
    """What a phase must at least do."""

    bytes: int
    flops: int


@dataclass(frozen=True, slots=True)
class Ceilings:
    read: float
    """Bytes per second."""
    rate: float
    """Operations per second; a multiplication and an addition are two."""

    def bound(self, work: Work) -> float:
        """Seconds."""
        return max(work.bytes / self.read, work.flops / self.rate)


def step_work(
    s: Settings, dtype: str, quantization: str | None, requests: int, new: int, context: int, kv_dtype: str = ""
) -> Work:
    """One step of `requests` sequences with `new` tokens each after `context` known ones: every matrix is read once, of the
    output matrix only the last rows are computed, keys and values of the context are read and those of new tokens written.
    Scores and weighted values count as products; norms and the like as nothing."""
    dtype_bytes = BYTES[dtype]
    p, use, a = s.parameters(dtype_bytes, 0), formats(quantization), s.attention
    layers, head = bytes_of(use.layers, p.layers, dtype_bytes, s.hidden), bytes_of(use.head, p.head, dtype_bytes, s.hidden)
    kv = 2 * a.kv_heads * kept_bytes(a.head_dim, kv_dtype or dtype) * len(s.windows)
    seen = sum(min(context + (new + 1) / 2, w or context + new) for w in s.windows)
    products = 2 * requests * (new * p.layers + p.head) // dtype_bytes
    attention = int(4 * a.heads * a.head_dim * requests * new * seen)
    return Work(layers + head + requests * kv * (context + 2 * new), products + attention)


def ceilings(device: Any, dtype: str, quantization: str | None) -> Ceilings:
    """Measured now, with the fastest kernel for weights as the model's layers hold them."""
    import torch

    from thalweg.hal.op import Binder
    from thalweg.hal.ops import linear
    from thalweg.hal.testing.measure import median_seconds
    from thalweg.hal.weights import DENSE, QTensor

    form, best = formats(quantization).layers, []
    for rows, fan_in, out in (READ, RATE):
        weight = torch.randn(out, fan_in).to(getattr(torch, dtype))
        x = device.put(torch.randn(rows, fan_in).to(weight.dtype))
        seconds = []
        for kernel in [k for k in device.kernels if k.op == "linear"] or [None]:
            bound = Binder([kernel] if kernel else []).bind(
                linear, dtype=dtype, in_features=fan_in, out_features=out, **facts(form)
            )
            if kernel and bound.choice.kernel != kernel.name:
                continue
            dense = QTensor(DENSE, (out, fan_in), {"weight": device.put(weight)})
            packed = bound.pack(dense if form == DENSE else rounded(dense, form))
            seconds.append(median_seconds(device, bound, [x, packed], 5))
        size = bytes_of(form, weight.nelement() * weight.element_size(), weight.element_size(), fan_in)
        best.append((size if rows == 1 else 2 * rows * fan_in * out) / min(seconds))
    return Ceilings(*best)


def main(namespace: argparse.Namespace, args: EngineArgs) -> dict[str, Any]:
    """Run, print a table and the results as JSON; they are returned too."""
    n = namespace
    at_least(1, input_len=n.input_len, batch_size=n.batch_size, num_iters=n.num_iters)
    at_least(2, output_len=n.output_len)
    check_output(n.output_json)
    from thalweg import LLM  # loads the tensor framework

    llm = LLM.from_engine_args(args)
    if not llm.kernel_plan or (not llm.device.kernels and not llm.device.attention):
        raise ConfigError(f"--device {llm.device.info.kind} computes no model: there is nothing to measure")
    hf = read_config(Path(llm.config.model.path), args.hf_overrides, windows=not args.disable_sliding_window)
    settings, dtype, method = registry.family(hf)(hf), llm.config.model.dtype, llm.config.model.quantization
    before = ceilings(llm.device, dtype, method)
    first, whole = _times(llm, n, args)
    after = ceilings(llm.device, dtype, method)
    limit = Ceilings((before.read + after.read) / 2, (before.rate + after.rate) / 2)
    steps = n.output_len - 1
    shared, kept = (settings, dtype, method, n.batch_size), args.kv_dtype
    phases = {
        "prefill": (step_work(*shared, n.input_len, 0, kept), first),
        "decode": (step_work(*shared, 1, n.input_len + steps // 2, kept), (whole - first) / steps),
    }
    result = {
        "device": llm.device.info.name, "cores": llm.device.info.cores, "dtype": dtype, "quantization": method,
        "kv_cache_dtype": args.kv_cache_dtype,
        "requests": n.batch_size, "input": n.input_len, "output": n.output_len,
        "read_bytes_per_second": {"before": before.read, "after": after.read},
        "operations_per_second": {"before": before.rate, "after": after.rate},
        "phases": {
            name: {**asdict(work), "seconds": took, "bound_seconds": limit.bound(work), "fraction": limit.bound(work) / took}
            for name, (work, took) in phases.items()
        },
        "kernel_plan": llm.kernel_plan,
    }  # fmt: skip
    llm.shutdown()
    write(n.output_json, result)
    print(table(result))
    print(json.dumps({k: v for k, v in result.items() if k != "kernel_plan"}, indent=2))
    return result


def _times(llm: Any, n: argparse.Namespace, args: EngineArgs) -> tuple[float, float]:
    """Medians: seconds to the first token of every request, and to the last."""
    avoid = frozenset() if args.skip_tokenizer_init else llm.get_tokenizer().special_ids
    prompts = random_prompts([n.input_len] * n.batch_size, llm.config.model.vocab, avoid, args.seed)
    seconds: dict[int, list[float]] = {1: [], n.output_len: []}
    for i in range(n.num_iters + 1):
        for count, spent in seconds.items():
            llm.reset_prefix_cache()
            params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=count, detokenize=False)
            start = time.perf_counter()
            llm.generate(prompts, params, use_tqdm=False)
            if i:
                spent.append(time.perf_counter() - start)
    return statistics.median(seconds[1]), statistics.median(seconds[n.output_len])


def table(result: dict[str, Any]) -> str:
    """For people."""
    lines = [f"{'phase':8} {'GB':>8} {'GFLOP':>9} {'bound ms':>9} {'took ms':>9} {'fraction':>9}"]
    for name, p in result["phases"].items():
        lines.append(
            f"{name:8} {p['bytes'] / 1e9:8.3f} {p['flops'] / 1e9:9.1f} {p['bound_seconds'] * 1e3:9.2f} "
            f"{p['seconds'] * 1e3:9.2f} {p['fraction']:9.1%}"
        )
    read, rate = result["read_bytes_per_second"], result["operations_per_second"]
    lines.append(f"ceilings before and after: {read['before'] / 1e9:.1f} and {read['after'] / 1e9:.1f} GB/s, "
                 f"{rate['before'] / 1e9:.0f} and {rate['after'] / 1e9:.0f} GFLOP/s")  # fmt: skip
    return "\n".join(lines)
