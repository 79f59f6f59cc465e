"""Do rows of products keep their bits, whatever the number of rows, in weights of the sizes that people serve? JSON.

    python ci/gpu/rows.py --device cuda [--quick] [--have FILE] [--output-json FILE]

The conformance kit's samples are small, and meet one tile of a product. Here every kernel of a linear layer that claims to be
batch-invariant multiplies 1 to 4,097 rows with each weight. Each row is compared, bit for bit, with what it is among 4,097.
Every tile of our own products has to be met.
errors: against float64, at the widths of an 8B model. far blocks: attention over cache blocks beyond 2^31 elements.
Exit status: 1 if rows differ, a tile was not met, or an error is larger than its bound.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from ceilings import tidy, torch_device
from sizes import ROWS, WEIGHTS
from torch import Tensor

from thalweg.hal import discovery
from thalweg.hal.device import Device
from thalweg.hal.op import Kernel
from thalweg.hal.ops.matmul import FP8, FP8_SCALED, INT4, INT8, INT8_W8A8, MXFP4, NVFP4
from thalweg.hal.ops.quantise import dequantise, quantise
from thalweg.hal.platform import Place
from thalweg.hal.weights import DENSE, QTensor, WeightFormat

GROUPED = replace(INT4, group=64, symmetric=False)
"""4-bit integers as `--quantization int4` rounds them."""
FORMATS = (DENSE, FP8_SCALED, INT8_W8A8, FP8, INT8, INT4, GROUPED, MXFP4, NVFP4)
LARGEST = 1 << 27
"""Elements of the largest weight that is quantised here: a vocabulary's takes too long."""
WIDTHS = ((4096, 4096), (4096, 14336))
"""Outputs, inputs of the weights whose errors are measured."""
BOUND = 3e-3
"""Largest relative error of a product against float64, root mean square. Rounding the result to bfloat16 makes 1.7e-3 of it."""
Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is multiplied. dtype: of inputs and dense weights."""

    weights: tuple[tuple[int, int], ...]
    rows: tuple[int, ...]
    dtype: torch.dtype

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")


FULL = Sizes(WEIGHTS, ROWS, torch.bfloat16)
SMALL = Sizes(((96, 64), (48, 160)), (1, 2, 5, 17, 40), torch.float32)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", required=True, help="platform to check: a name, or package.module:Class")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that everything runs")
    parser.add_argument("--have", type=Path, metavar="FILE", help="an earlier report; figures in it are not made again")
    parser.add_argument("--output-json", type=Path)
    args = parser.parse_args()
    found: dict[str, Any] = {} if args.have is None else json.loads(args.have.read_text())["figures"]
    report: dict[str, Any] = {"device": args.device, "figures": found}
    for name, value in check(args.device, args.quick, found):
        found[name] = value
        print(f"{name}: {json.dumps(value)[:600]}", flush=True)
        if args.output_json:
            args.output_json.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if all(f["holds"] is not False for f in found.values()) else 1


def check(name: str, quick: bool, have: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(figure, what was found), one after the other, but for those in `have`."""
    at, sizes = torch_device(name), SMALL if quick else FULL
    device = discovery.load(name).open(Place())
    try:
        with torch.inference_mode():
            for format, of in (*((f, sizes) for f in FORMATS), (DENSE, replace(sizes, dtype=torch.float16))):
                for kernel in claimants(device, format, of):
                    label = f"rows {kernel.name} {format} {of.dtype_name}"
                    if label not in have:
                        yield label, compare(kernel, format, of, at)
                        tidy(at)
            for kernel, format, shape in mixtures(device, quick):
                label = f"experts {kernel.name} {format} {shape.experts} x {shape.hidden} x {shape.inner}"
                if label not in have:
                    yield label, compare_experts(kernel, format, shape, at, (1, 5, 17) if quick else EXPERT_ROWS)
                    tidy(at)
            if "tiles" not in have:
                yield "tiles", unmet(device, sizes)
            if "errors" not in have and not quick:
                yield "errors", errors(device, at)
            if "far blocks" not in have and not quick:
                yield "far blocks", far_blocks(device, at)
    finally:
        device.close()


def claimants(device: Device, format: WeightFormat, sizes: Sizes) -> list[Kernel]:
    """Kernels of linear layers that run this format and claim that rows do not depend on the batch."""
    out, width = sizes.weights[0]
    spec = {"weight": format, "act": format.act, "group": format.group, "in_features": width, "out_features": out,
            "dtype": sizes.dtype_name}  # fmt: skip
    return [k for k in device.kernels if k.op == "linear" and k.batch_invariant and k.supports(spec) is None]


def draw(shape: Sequence[int], at: torch.device, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    result = torch.Generator(at).manual_seed(sum(shape))
    return (torch.randn(*shape, generator=result, device=at) * scale).to(dtype)


def weight_of(kernel: Kernel, format: WeightFormat, dense: Tensor) -> Any:
    """The weight as this kernel packs it."""
    if format == DENSE:
        return kernel.pack(QTensor(DENSE, (dense.shape[0], dense.shape[1]), {"weight": dense}))
    return kernel.pack(quantise(dense, format))


def static_of(format: WeightFormat) -> dict[str, Any]:
    return {} if format == DENSE else {"act": format.act, "group": format.group}


def compare(kernel: Kernel, format: WeightFormat, sizes: Sizes, at: torch.device) -> dict[str, Any]:
    """Which numbers of rows change a row's bits, by weight. Weights that a kernel refuses are left out."""
    differ: dict[str, list[int]] = {}
    count = 0
    for out, width in sizes.weights:
        spec = {"weight": format, "in_features": width, "out_features": out, "dtype": sizes.dtype_name}
        if kernel.supports(spec) is not None or (format != DENSE and out * width > LARGEST):
            continue
        weight = weight_of(kernel, format, draw((out, width), at, sizes.dtype, width**-0.5))
        x, bias = draw((max(sizes.rows), width), at, sizes.dtype), draw((out,), at, sizes.dtype)
        for label, more in (("", ()), (" with a bias", (bias,))):
            wrong = differing(lambda x, w=weight, m=more: kernel.run(x, w, *m, **static_of(format)), x, sizes.rows)
            count += len(sizes.rows)
            if wrong:
                differ[f"{out} x {width}{label}"] = wrong
    return {"holds": not differ and count > 0, "compared": count, "differ": differ}


def differing(run: Product, x: Tensor, rows: Sequence[int]) -> list[int]:
    """Numbers of rows for which a row's result differs from what it is among all of x. The rows are picked at random, so that
    they also change places."""
    whole, out = run(x), []
    for n in rows:
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(n))[:n].to(x.device)
        if not torch.equal(run(x[order]), whole[order]):
            out.append(n)
    return out


@dataclass(frozen=True, slots=True)
class Mixture:
    """Experts of one layer: how many, of how many each token has, their sizes."""

    experts: int
    each: int
    hidden: int
    inner: int


QWEN, GPT_OSS, TINY = Mixture(128, 8, 2048, 768), Mixture(32, 4, 2880, 2880), Mixture(4, 2, 64, 32)
EXPERT_ROWS = (1, 2, 7, 16, 17, 64, 65, 256, 1000)


def mixtures(device: Device, quick: bool) -> Iterator[tuple[Kernel, WeightFormat, Mixture]]:
    """Kernels of mixtures that claim that rows do not depend on the batch, each with a format and the sizes of a model."""
    dtype = "float32" if quick else "bfloat16"
    for format, shape in ((DENSE, TINY),) if quick else ((DENSE, QWEN), (MXFP4, GPT_OSS)):
        facts = {"weight": format, "down_weight": format, "dtype": dtype, "act": "silu"}
        yield from ((k, format, shape) for k in device.kernels
                    if k.op == "experts" and k.batch_invariant and k.supports(facts) is None)  # fmt: skip


def compare_experts(
    kernel: Kernel, format: WeightFormat, s: Mixture, at: torch.device, rows: Sequence[int]
) -> dict[str, Any]:  # fmt: skip
    """Which numbers of tokens change a token's bits."""
    dtype = torch.float32 if s is TINY else torch.bfloat16
    tokens = max(rows)
    up, down = (
        weight_of(kernel, format, draw((s.experts * out, width), at, dtype, width**-0.5))
        for out, width in ((2 * s.inner, s.hidden), (s.hidden, s.inner))
    )
    x, scores = draw((tokens, s.hidden), at, dtype), draw((tokens, s.experts), at, torch.float32)
    shares, ids = scores.softmax(-1).topk(s.each, -1)
    ids = ids.to(torch.int32)
    static = {"experts": s.experts, "act": "silu", "group": format.group, "down_group": format.group}
    whole, differ = kernel.run(x, ids, shares, up, down, **static), []
    for n in rows:
        order = torch.randperm(tokens, generator=torch.Generator().manual_seed(n))[:n].to(at)
        if not torch.equal(kernel.run(x[order], ids[order], shares[order], up, down, **static), whole[order]):
            differ.append(n)
    return {"holds": not differ, "compared": len(rows), "differ": differ}


def unmet(device: Device, sizes: Sizes) -> dict[str, Any]:
    """Tiles of our own products that none of these sizes meets: by operands, rows x columns."""
    try:
        from thalweg.backends.triton_kernels.tiles import OPERANDS, tiles
    except ImportError:
        return {"holds": None, "why": "Triton is not installed"}
    if not any(k.op == "linear" and k.name == "triton" for k in device.kernels) or sizes is SMALL:
        return {"holds": None, "why": "none of our products serves here"}
    product, missing = tiles(device.info.notes["arch"]).product, {}
    for operands in OPERANDS:
        met = {product.choose(operands, n, out, width) for out, width in sizes.weights for n in sizes.rows}
        if left := [f"{t.rows} x {t.cols}" for t in getattr(product, operands) if t not in met]:
            missing[operands] = left
    return {"holds": not missing, "unmet": missing}


def errors(device: Device, at: torch.device) -> dict[str, Any]:
    """Root mean square of the error over that of the result, in float64, of what multiplies: inputs and weights as rounded."""
    found: dict[str, float] = {}
    for format in (DENSE, FP8_SCALED, INT8_W8A8):
        for kernel in claimants(device, format, FULL):
            for out, width in WIDTHS:
                x, dense = draw((300, width), at, torch.bfloat16), draw((out, width), at, torch.bfloat16, width**-0.5)
                got = kernel.run(x, weight_of(kernel, format, dense), **static_of(format)).double()
                want = exact(format, x, dense)
                found[f"{kernel.name} {width}"] = float((got - want).norm() / want.norm())
    return {"holds": bool(found) and max(found.values()) <= BOUND, "bound": BOUND, "relative": found}


def exact(format: WeightFormat, x: Tensor, dense: Tensor) -> Tensor:
    """The product of what the op rounds its operands to, in float64."""
    from thalweg.hal.ops.quantise import round_rows

    if format == DENSE:
        return x.double() @ dense.double().t()
    weight = dequantise(dict(quantise(dense, format).data), format.group, torch.float32)
    rows = round_rows(x.float().cpu(), format.act, format.group, None)  # a GPU divides by a number as it multiplies by 1 / it
    return rows.to(x.device).double() @ weight.double().t()


def far_blocks(device: Device, at: torch.device) -> dict[str, Any]:
    """Attention over the last blocks of a cache of more than 2^31 elements gives the bits of the first blocks."""
    from contestants import _attend  # which imports what times, too

    from thalweg.hal.attention import AttnSpec

    spec = AttnSpec(32, 8, 128, 128**-0.5, "bfloat16")
    backend = next(b for b in device.attention if b.batch_invariant and b.supports(spec) is None)
    block = math.prod(backend.layout(spec, 16).shape)
    before = (1 << 31) // block
    if at.type == "cpu" or torch.cuda.mem_get_info(at)[0] < before * block * 4.2:
        return {"holds": None, "why": "not enough memory for 2^31 elements, twice"}
    near, far = (_attend(backend, spec, [600], [1], at, first)() for first in (0, before))
    return {"holds": bool(torch.equal(near, far)), "elements": before * block}


if __name__ == "__main__":
    sys.exit(main())
