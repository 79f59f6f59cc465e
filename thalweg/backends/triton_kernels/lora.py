"""Low-rank adapters as experts of which a token has one or none: `moe` cuts the tokens of each slot into tiles."""

import functools

import torch
import triton
from torch import Tensor

from thalweg.backends.triton_kernels import groups, moe, quantised
from thalweg.backends.triton_kernels.linear import DTYPES
from thalweg.backends.triton_kernels.tiles import TileSizes
from thalweg.hal.op import Kernel
from thalweg.hal.ops.lora import NONE


def _through(tiles: TileSizes, x: Tensor, slots: Tensor, weights: Tensor) -> Tensor:
    """x [T, width] through weights [slots, cols, width], 0 for the slot NONE. Tiles have the same size in any batch."""
    count, cols, width = weights.shape
    x, weights = x.contiguous(), weights.contiguous()
    out = torch.zeros((x.shape[0], cols), dtype=x.dtype, device=x.device)
    if x.shape[0] == 0:
        return out
    _, n = quantised.tile_sizes(tiles, cols, 1, True, x.dtype)
    m, k = 16, quantised.inputs_of("raw", 0, tiles.product.inner, x.dtype)
    k = min(k, max(16, triton.next_power_of_2(width)))
    work = groups.assign(torch.where(slots == NONE, count, slots), count, m)
    n = min(n, max(16, triton.next_power_of_2(cols)))
    moe.down[(work.tile_expert.shape[0], triton.cdiv(cols, n))](
        x, weights, weights, weights, out, *work, width, cols, width, E=count, KIND="raw", GROUP=0, SCALED=False, ZEROS=False,
        EVEN=width % k == 0, NATIVE=tiles.float8, PAIRED=False, PRECISION="ieee", M=m, N=n, K=k, STAGES=tiles.product.stages,
        UNROLL=1, num_warps=min(4, tiles.product.warps), num_stages=tiles.product.stages,
    )  # fmt: skip
    return out


def shrink(tiles: TileSizes, x: Tensor, slots: Tensor, a: Tensor) -> Tensor:
    return _through(tiles, x, slots, a)


def expand(tiles: TileSizes, y: Tensor, low: Tensor, slots: Tensor, b: Tensor) -> Tensor:
    return y + _through(tiles, low, slots, b)


def _fits(spec) -> str | None:
    return None if spec["dtype"] in DTYPES else f"runs {', '.join(DTYPES)}, not {spec['dtype']}"


def kernels(t: TileSizes) -> tuple[Kernel, ...]:
    part = functools.partial
    return (
        Kernel("lora_shrink", "triton", part(shrink, t), supports=_fits, batch_invariant=True),
        Kernel("lora_expand", "triton", part(expand, t), supports=_fits, batch_invariant=True),
    )
