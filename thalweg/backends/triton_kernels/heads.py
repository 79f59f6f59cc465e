"""Products with a separate matrix per head, with the same bits in any batch. Tiles are those of linear layers."""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from thalweg.backends.triton_kernels.linear import DTYPES
from thalweg.backends.triton_kernels.tiles import TileSizes
from thalweg.hal.op import Kernel


@triton.jit(do_not_specialize=["rows"])
def _head_product(
    x, weight, out, rows, width, cols, x_row, x_head, w_head, w_in, w_out, EVEN: tl.constexpr, PRECISION: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """M x N of the product of one head: x [rows, heads, width], weight [heads, width, cols] by strides, out [rows, heads,
    cols]."""
    head = tl.program_id(1).to(tl.int64)
    tiles = (cols + N - 1) // N
    i = (tl.program_id(0) // tiles * M + tl.arange(0, M)).to(tl.int64)
    j = (tl.program_id(0) % tiles * N + tl.arange(0, N)).to(tl.int64)
    k = tl.arange(0, K)
    x_at = x + head * x_head + i[:, None] * x_row + k[None, :]
    w_at = weight + head * w_head + k[:, None] * w_in + j[None, :] * w_out
    i_ok, j_ok = (i < rows)[:, None], (j < cols)[None, :]
    acc = tl.zeros([M, N], tl.float32)
    for start in range(0, width, K):
        if EVEN:
            a, b = tl.load(x_at + start, mask=i_ok, other=0.0), tl.load(w_at + start * w_in, mask=j_ok, other=0.0)
        else:
            there = start + k < width
            a = tl.load(x_at + start, mask=i_ok & there[None, :], other=0.0)
            b = tl.load(w_at + start * w_in, mask=j_ok & there[:, None], other=0.0)
        acc += tl.dot(a, b, input_precision=PRECISION)
    at = out + (i[:, None] * tl.num_programs(1) + head) * cols + j[None, :]
    tl.store(at, acc.to(out.dtype.element_ty), mask=i_ok & j_ok)


def head_linear(tiles: TileSizes, x: Tensor, weight: Tensor, *, heads: int, out_features: int, turned: bool = False) -> Tensor:
    x = x if x.stride(2) == 1 else x.contiguous()
    rows, _, width = x.shape
    out = torch.empty((rows, heads, out_features), dtype=x.dtype, device=x.device)
    if rows:
        t, exact = tiles.product, x.dtype == torch.float32
        m, n = t.rows, t.cols if out_features >= t.wide else t.narrow
        if exact:
            m, n = min(m, tiles.scalar), min(n, tiles.scalar)
        k = max(16, t.inner * 2 // x.element_size())
        each = weight.view(heads, -1, weight.shape[1])
        w_in, w_out = each.stride()[1:] if turned else each.stride()[:0:-1]
        _head_product[(triton.cdiv(rows, m) * triton.cdiv(out_features, n), heads)](
            x, weight, out, rows, width, out_features, x.stride(0), x.stride(1), each.stride(0), w_in, w_out,
            EVEN=width % k == 0, PRECISION="ieee", M=m, N=n, K=k, num_warps=t.warps, num_stages=t.stages,
        )  # fmt: skip
    return out


def _fits(spec) -> str | None:
    return None if spec["dtype"] in DTYPES else f"runs {', '.join(DTYPES)}, not {spec['dtype']}"


def kernels(t: TileSizes) -> tuple[Kernel, ...]:
    return (Kernel("head_linear", "triton", functools.partial(head_linear, t), supports=_fits, batch_invariant=True),)
