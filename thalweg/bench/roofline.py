"""`thalweg bench roofline`: bytes and operations of a model's steps, this device's ceilings, and the fraction reached.

Ceilings are measured on the device in the same run, before and after the model. Bytes read per second: the larger of a plain
read of memory (`Device.read_rate`), where the device has one, and of one row times a matrix far larger than any cache. The
latter uses the fastest kernel for linear layers. Bytes count weights in their format. A device that stores weights in fewer
bytes reads more per second. Operations per second: the peak of the device's instructions with everything in registers
(`Device.peak`), where the device reports one. The practical rate is the fastest kernel's, for many rows times a matrix. It is
the ceiling where the device reports no peak. Matrices grow until one product is long enough to measure. A phase's bound is the
larger of its two times at these ceilings. Its fraction is that bound over the measured time, and its practical fraction is the
same at the practical rate.

Where the device counts its functions, a second table breaks down prefill and a decoding step by function. Counting costs time
too, so these are shares.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from thalweg.bench import by_op
from thalweg.bench.common import at_least, check_output, random_prompts, write
from thalweg.config import EngineArgs
from thalweg.engine.planning import checkpoint_config
from thalweg.errors import ConfigError
from thalweg.hal.kv import BYTES
from thalweg.hal.op import Binder
from thalweg.hal.weights import DENSE, WeightFormat
from thalweg.models import registry
from thalweg.models.build import resolve_scheme
from thalweg.models.precision import model_scheme
from thalweg.models.sizes import StepWork, parameters, step_work
from thalweg.params import SamplingParams
from thalweg.quantization.online import linear_spec, round_weight

REFUSED = ()
READ, RATE = (1, 4096, 32768), (512, 2048, 2048)
"""Rows, inputs, outputs of the two measurements, at least."""
LEAST = 2e-3
"""Least seconds of a measured product, if memory allows: shorter ones measure launch overhead."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--input-len", type=int, default=512, help="prompt tokens (default 512)")
    parser.add_argument("--output-len", type=int, default=64, help="generated tokens (default 64)")
    parser.add_argument("--batch-size", type=int, default=1, help="requests at once (default 1)")
    parser.add_argument("--num-iters", type=int, default=3, help="measured runs, after a warm-up (default 3)")
    parser.add_argument("--output-json", metavar="FILE", help="write the results there too")


@dataclass(frozen=True, slots=True)
class Ceilings:
    read: float
    """Bytes per second."""
    rate: float
    """Operations per second of products. A multiplication and an addition are two."""
    peak: float | None = None
    """Rate of the device's instructions. None: it cannot say."""

    @property
    def practical(self) -> Ceilings:
        return Ceilings(self.read, self.rate)

    def bound(self, work: StepWork) -> float:
        """Seconds."""
        return max(work.bytes / self.read, work.flops / max(self.rate, self.peak or 0.0))


def ceilings(device: Any, dtype: str, form: WeightFormat) -> Ceilings:
    """Measured now, for weights held in this form."""
    read, rate = (_fastest(device, dtype, form, shape) for shape in (READ, RATE))
    read = max(read, device.read_rate() or 0.0)  # a kernel that reads badly is no ceiling
    peaks = [device.peak(kind) for kind in _product_dtypes(dtype, form)]
    return Ceilings(read, rate, max((p for p in peaks if p), default=None))


def _product_dtypes(dtype: str, form: WeightFormat) -> list[str]:
    """Possible types of products. Weight-only quantised weights are multiplied by inputs of the model's type, or by the
    integers a kernel rounds the inputs to."""
    if form.kind != "int":
        return [dtype]
    codes = f"int{form.bits}"
    return [codes] if form.act else [dtype, codes]


def _fastest(device: Any, dtype: str, form: WeightFormat, shape: tuple[int, int, int]) -> float:
    """Bytes of the matrix (one row) or operations (many) per second."""
    while True:
        rows, fan_in, out = shape
        seconds = _seconds(device, dtype, form, rows, fan_in, out)
        larger = (rows, fan_in, 2 * out) if rows == 1 else (2 * rows, 2 * fan_in, 2 * out)
        # The matrix as it is made, and as a kernel packs it.
        if seconds >= LEAST or 2 * larger[1] * larger[2] * BYTES[dtype] > device.memory().free // 2:
            break
        shape = larger
    size = fan_in * out * BYTES[dtype] if form == DENSE else form.bytes(out, fan_in)
    return (size if rows == 1 else 2 * rows * fan_in * out) / seconds


def _seconds(device: Any, dtype: str, form: WeightFormat, rows: int, fan_in: int, out: int) -> float:
    """Of one product, by the fastest kernel."""
    import torch

    from thalweg.hal.op import Binder
    from thalweg.hal.ops import linear
    from thalweg.hal.testing.measure import median_seconds
    from thalweg.hal.weights import QTensor

    kind = getattr(torch, dtype)
    weight = device.normal((out, fan_in), dtype, std=1.0, seed=0) if form == DENSE else None
    result = QTensor(DENSE, (out, fan_in), {"weight": torch.randn(out, fan_in).to(kind) if weight is None else weight})
    result = result if form == DENSE else round_weight(result, form)
    result = QTensor(form, result.shape, {name: device.put(data) for name, data in result.data.items()})
    x = device.put(torch.randn(rows, fan_in).to(kind))
    seconds = []
    for kernel in [k for k in device.kernels if k.op == "linear"] or [None]:
        bound = Binder([kernel] if kernel else []).bind(
            linear, dtype=dtype, in_features=fan_in, out_features=out, **linear_spec(form)
        )
        if kernel and bound.choice.kernel != kernel.name:
            continue
        seconds.append(median_seconds(device, bound, [x, bound.pack(result)], 5))
    return min(seconds)


def main(namespace: argparse.Namespace, args: EngineArgs) -> dict[str, Any]:
    """Run, print a table and the results as JSON. They are returned too."""
    n = namespace
    at_least(1, input_len=n.input_len, batch_size=n.batch_size, num_iters=n.num_iters)
    at_least(2, output_len=n.output_len)
    check_output(n.output_json)
    from thalweg import LLM  # loads the tensor framework

    llm = LLM.from_engine_args(args)
    if not llm.kernel_plan or (not llm.device.kernels and not llm.device.attention):
        raise ConfigError(f"--device {llm.device.info.kind} computes no model: there is nothing to measure")
    path = Path(llm.config.model.path)
    hf, spec = registry.declare(checkpoint_config.read(args, path), path)
    dtype, method = llm.config.model.dtype, llm.config.model.quantization
    scheme = resolve_scheme(model_scheme(hf, method, spec), Binder(llm.device.kernels), dtype, spec.hidden)
    form = next(scheme.of(w.role, w.sources[0].name) for w in parameters(spec) if w.role == "linear")
    before = ceilings(llm.device, dtype, form)
    first, whole = _times(llm, n, args)
    after = ceilings(llm.device, dtype, form)
    limit = Ceilings((before.read + after.read) / 2, (before.rate + after.rate) / 2, _mean(before.peak, after.peak))
    steps = n.output_len - 1
    shared, kept = (spec, dtype, scheme, n.batch_size), llm.config.cache.dtype
    phases = {
        "prefill": (step_work(*shared, n.input_len, 0, kept, args.kv_cache_dtype_skip_layers), first),
        "decode": (
            step_work(*shared, 1, n.input_len + steps // 2, kept, args.kv_cache_dtype_skip_layers),
            (whole - first) / steps,
        ),
    }
    result = {
        "device": llm.device.info.name, "cores": llm.device.info.cores, "dtype": dtype, "quantization": method,
        "kv_cache_dtype": args.kv_cache_dtype,
        "requests": n.batch_size, "input": n.input_len, "output": n.output_len,
        "read_bytes_per_second": {"before": before.read, "after": after.read},
        "operations_per_second": {"before": before.rate, "after": after.rate},
        "peak_operations_per_second": {"before": before.peak, "after": after.peak},
        "phases": {
            name: {
                **asdict(work), "seconds": took, "bound_seconds": limit.bound(work), "fraction": limit.bound(work) / took,
                "practical_fraction": limit.practical.bound(work) / took,
            }
            for name, (work, took) in phases.items()
        },
        "kernel_plan": llm.kernel_plan,
    }  # fmt: skip
    result["by_op"] = by_op.measure(llm, _prompts(llm, n, args), n.output_len)
    llm.shutdown()
    write(n.output_json, result)
    print(table(result))
    print(by_op.table(result["by_op"]) if result["by_op"] else "the device does not count where its time goes")
    print(json.dumps({k: v for k, v in result.items() if k not in ("kernel_plan", "by_op")}, indent=2))
    return result


def _times(llm: Any, n: argparse.Namespace, args: EngineArgs) -> tuple[float, float]:
    """Medians: seconds to the first token of every request, and to the last."""
    prompts = _prompts(llm, n, args)
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


def _prompts(llm: Any, n: argparse.Namespace, args: EngineArgs) -> list[Any]:
    avoid = frozenset() if args.skip_tokenizer_init else llm.get_tokenizer().special_ids
    return random_prompts([n.input_len] * n.batch_size, llm.config.model.vocab, avoid, args.seed)


def _mean(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else (before + after) / 2


def table(result: dict[str, Any]) -> str:
    """For people."""
    lines = [f"{'phase':8} {'GB':>8} {'GFLOP':>9} {'bound ms':>9} {'took ms':>9} {'fraction':>9} {'practical':>9}"]
    for name, p in result["phases"].items():
        lines.append(
            f"{name:8} {p['bytes'] / 1e9:8.3f} {p['flops'] / 1e9:9.1f} {p['bound_seconds'] * 1e3:9.2f} "
            f"{p['seconds'] * 1e3:9.2f} {p['fraction']:9.1%} {p['practical_fraction']:9.1%}"
        )
    read, rate, peak = (result[n] for n in ("read_bytes_per_second", "operations_per_second", "peak_operations_per_second"))
    lines.append(f"ceilings before and after: {read['before'] / 1e9:.1f} and {read['after'] / 1e9:.1f} GB/s")
    lines.append(f"products reach {rate['before'] / 1e9:.0f} and {rate['after'] / 1e9:.0f} GFLOP/s")
    if _mean(**peak) is None:
        lines.append("this device reports no peak of its instructions: products are the ceiling")
    else:
        share = (rate["before"] + rate["after"]) / (peak["before"] + peak["after"])
        lines.append(
            f"instructions in registers do {peak['before'] / 1e9:.0f} and {peak['after'] / 1e9:.0f} GFLOP/s: "
            f"products reach {share:.0%} of the peak"
        )
    return "\n".join(lines)
