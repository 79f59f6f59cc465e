"""The experts of a mixture on the CPU: the compiled kernel beside the op's body, and beside what the machine allows.

    python benchmarks/experts_cpu.py [--experts 128 --top 8 --hidden 2048 --inner 768] [--formats dense,int8,int4,Q4_K_M]
        [--tokens 1,8,64,512] [--body 1,64] [--threads N] [--isa X]

One layer of Qwen3-30B-A3B by default. Every call sends its tokens to other experts, so that few lie in a cache. The bound is
the larger of two times: to read the experts that have a token at the rate at which one row reads a dense matrix, and to
multiply at the rate of the linear kernel with many rows of the same format. Both rates are measured in the same run. Of several
calls the shortest counts, because what else the machine does only adds. The body takes seconds a call. It runs once, and only
for the numbers of tokens that --body names.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

import torch

from thalweg.backends.cpu import CpuOptions, CpuPlatform
from thalweg.hal import ops
from thalweg.hal.op import Binder, BoundOp
from thalweg.hal.ops.matmul import MXFP4
from thalweg.hal.ops.moe import Q4_K, Q6_K
from thalweg.hal.ops.quantise import at_rest, quantise
from thalweg.hal.platform import Place
from thalweg.hal.weights import DENSE, QTensor, WeightFormat
from thalweg.quantization.online import METHODS, linear_spec

INT8, INT4 = METHODS["w8a16"].layers, METHODS["w4a16"].layers
FORMATS = {"dense": (DENSE, DENSE), "int8": (INT8, INT8), "int4": (INT4, INT4), "Q4_K_M": (Q4_K, Q6_K), "mxfp4": (MXFP4, MXFP4)}
"""Of gate_up, and of down."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, size in (("experts", 128), ("top", 8), ("hidden", 2048), ("inner", 768), ("repeats", 7), ("threads", 0)):
        parser.add_argument(f"--{name}", type=int, default=size)
    for name, several in (("formats", ",".join(FORMATS)), ("tokens", "1,8,64,512"), ("body", "1,64")):
        parser.add_argument(f"--{name}", type=lambda text: text.split(",") if text else [], default=several.split(","))
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--isa", default="")
    args = parser.parse_args()
    device = CpuPlatform().with_options(CpuOptions(args.threads, args.isa)).open(Place())
    print(f"{device.info.name}, {device.info.cores} threads, {dict(device.info.notes)}", file=sys.stderr)
    wide = 16 * args.hidden
    read = wide * args.hidden * getattr(torch, args.dtype).itemsize / product(device, args, DENSE, 1, args.hidden, wide)
    print(f"reads {read / 1e9:.1f} GB/s", file=sys.stderr)
    report = {name: measured(device, name, args, read) for name in args.formats}
    print(json.dumps({"bytes_per_second": read, "layers": report}, indent=2))


def measured(device: Any, name: str, args: argparse.Namespace, read: float) -> dict[str, Any]:
    form, down = FORMATS[name]
    rate = 2 * 512 * args.hidden * args.hidden / product(device, args, form, 512, args.hidden, args.hidden)
    facts = {
        "experts": args.experts, "act": "silu", "weight": form, "group": form.group, "down_weight": down,
        "down_group": down.group, "dtype": args.dtype,
    }  # fmt: skip
    sizes = ((2 * args.inner, args.hidden, form), (args.hidden, args.inner, down))
    held = [weight(args, *size, args.experts) for size in sizes]
    kernel = Binder(device.kernels).bind(ops.experts, **facts)
    packed = [kernel.pack(w) for w in held]
    body = Binder(()).bind(ops.experts, **facts)
    kept = [QTensor(w.format, w.shape, at_rest(w)) if w.format != DENSE else w for w in held] if args.body else []
    plain = [body.pack(w) for w in kept]
    del held, kept
    each = sum(bytes_of(args, *size) for size in sizes)
    report = {}
    for tokens in map(int, args.tokens):
        batches = [batch(args, tokens, i) for i in range(args.repeats + 1)]
        touched = round(statistics.mean(len(ids.unique()) for _, ids, _ in batches[1:]))
        bounds = touched * each / read, 6 * tokens * args.top * args.hidden * args.inner / rate
        took = least(kernel, [[*b, *packed] for b in batches])
        slow = least(body, [[*batches[0], *plain]]) if str(tokens) in args.body else None
        report[tokens] = {
            "kernel": kernel.choice.kernel, "seconds": took, "experts": touched, "bytes": touched * each,
            "bound_seconds": max(bounds), "fraction": max(bounds) / took, "body_seconds": slow,
        }  # fmt: skip
        print(
            f"{name:7} {tokens:4} tokens, {touched:3} experts: {took * 1e3:9.2f} ms, {touched * each / took / 1e9:5.1f} GB/s, "
            f"{max(bounds) / took:4.2f} of the bound by {'reading' if bounds[0] > bounds[1] else 'multiplying'}"
            + (f"; body {slow * 1e3:9.1f} ms, {slow / took:6.1f}x" if slow else ""),
            file=sys.stderr, flush=True,
        )  # fmt: skip
    return report


def weight(args: argparse.Namespace, out: int, fan_in: int, form: WeightFormat, count: int) -> QTensor:
    """Matrices of equal values, each in memory of its own: times do not depend on them."""
    one = (torch.randn(out, fan_in) / fan_in**0.5).to(getattr(torch, args.dtype))
    data = {"weight": one} if form == DENSE else quantise(one, form).data
    return QTensor(form, (count * out, fan_in), {n: a.repeat(count, 1) for n, a in data.items()}, count)


def bytes_of(args: argparse.Namespace, out: int, fan_in: int, form: WeightFormat) -> int:
    return out * fan_in * getattr(torch, args.dtype).itemsize if form == DENSE else form.bytes(out, fan_in)


def batch(args: argparse.Namespace, tokens: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Experts at random; of one token and another seed, other ones as long as there are some."""
    generator = torch.Generator().manual_seed(tokens)
    ids = torch.rand(tokens, args.experts, generator=generator).argsort(-1)
    ids = ids.roll(-seed * args.top, -1)[:, : args.top].int()
    x = torch.randn(tokens, args.hidden, generator=generator).to(getattr(torch, args.dtype))
    return x, ids, torch.rand(tokens, args.top, generator=generator)


def product(device: Any, args: argparse.Namespace, form: WeightFormat, rows: int, fan_in: int, out: int) -> float:
    """Seconds of a linear layer."""
    facts = {"dtype": args.dtype, "in_features": fan_in, "out_features": out, **linear_spec(form)}
    bound = Binder(device.kernels).bind(ops.linear, **facts)
    packed = bound.pack(weight(args, out, fan_in, form, 1))
    x = torch.randn(rows, fan_in).to(getattr(torch, args.dtype))
    return least(bound, [[x, packed, None]] * (args.repeats + 1))


def least(call: BoundOp, calls: list[list[Any]]) -> float:
    """The shortest of several calls after a first one, or the only one."""
    times = []
    for arguments in calls:
        start = time.perf_counter()
        call(*arguments)
        times.append(time.perf_counter() - start)
    return min(times[1:] or times)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
