"""Linear layers with the same bits in any batch. One program sums a whole row of the weight, in steps of a length that follows
only from the weight's type. Rows and columns of a tile follow from the sizes, and change no sum. Vendors' products are faster,
and choose their order of sums by the number of rows."""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from thalweg.backends.triton_kernels.dependent import declare_dependence, prefetch_weight, wait_for_launches
from thalweg.backends.triton_kernels.tiles import TileSizes
from thalweg.hal.op import Kernel

DTYPES = ("float32", "bfloat16", "float16")


@triton.jit(do_not_specialize=["rows"])
def _product(
    x, weight, bias, out, rows, width, cols, x_row, w_row, BIAS: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """M x N of x [rows, width] @ weight [cols, width].T. Programs that share columns are neighbours, so that a tile of the
    weight is read from memory once."""
    i = (tl.program_id(0) * M + tl.arange(0, M)).to(tl.int64)
    j = (tl.program_id(1) * N + tl.arange(0, N)).to(tl.int64)
    prefetch_weight(weight, tl.minimum(j, cols - 1) * w_row, 0, width, DEPENDENT)
    wait_for_launches(DEPENDENT)
    k = tl.arange(0, K)
    x_at = x + i[:, None] * x_row + k[None, :]
    w_at = weight + j[:, None] * w_row + k[None, :]
    i_ok, j_ok = (i < rows)[:, None], (j < cols)[:, None]
    acc = tl.zeros([M, N], tl.float32)
    for start in range(0, width, K):
        if EVEN:
            a, b = tl.load(x_at + start, mask=i_ok, other=0.0), tl.load(w_at + start, mask=j_ok, other=0.0)
        else:
            there = (start + k < width)[None, :]
            a = tl.load(x_at + start, mask=i_ok & there, other=0.0)
            b = tl.load(w_at + start, mask=j_ok & there, other=0.0)
        acc += tl.dot(a, tl.trans(b), input_precision=PRECISION)
    if BIAS:
        acc += tl.load(bias + j, mask=j < cols, other=0.0).to(tl.float32)[None, :]
    tl.store(out + i[:, None] * cols + j[None, :], acc.to(out.dtype.element_ty), mask=i_ok & (j < cols)[None, :])


def linear(tiles: TileSizes, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    flat = x.reshape(-1, x.shape[-1])
    flat = flat if flat.stride(1) == 1 else flat.contiguous()
    (rows, width), cols = flat.shape, weight.shape[0]
    out = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if rows:
        t = tiles.product.choose("dense", rows, cols, width)
        t = t.cut(tiles.scalar) if x.dtype == torch.float32 else t
        k = max(16, t.inner * 2 // x.element_size())
        grid = (triton.cdiv(rows, t.rows), triton.cdiv(cols, t.cols))
        _product[grid](
            flat, weight, weight if bias is None else bias, out, rows, width, cols, flat.stride(0), weight.stride(0),
            BIAS=bias is not None, EVEN=width % k == 0, PRECISION="ieee", M=t.rows, N=t.cols, K=k, num_warps=t.warps,
            num_stages=t.stages, **declare_dependence(tiles),
        )  # fmt: skip
    return out.view(*x.shape[:-1], cols)


def _fits(spec) -> str | None:
    if spec["weight"].kind != "dense":
        return f"runs dense weights, not {spec['weight']}"
    return None if spec["dtype"] in DTYPES else f"runs {', '.join(DTYPES)}, not {spec['dtype']}"


def kernels(t: TileSizes) -> tuple[Kernel, ...]:
    """A layer that need not have the same bits in any batch should prefer its vendor's product to this one."""
    return (Kernel("linear", "triton", functools.partial(linear, t), supports=_fits, batch_invariant=True),)
