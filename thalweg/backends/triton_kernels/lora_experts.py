"""Low-rank adapters of experts. The kernels of `moe` add B (A x) to their products, and here A x is computed before.

A tile of pairs has one expert and any slots. It is multiplied by the adapter of each slot that is there, so grids do not depend
on slots, and a captured step replays for any. Rows without an adapter keep their bits.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from thalweg.backends.triton_kernels.groups import Groups
from thalweg.backends.triton_kernels.lora import choose_inputs
from thalweg.backends.triton_kernels.tiles import TileSizes

_ROWS = 16
"""Rows of a program. One number, so that a sum has one order."""


class ExpertAdapters(NamedTuple):
    """The arrays of `lora_experts`."""

    slots: Tensor
    gate_up_a: Tensor
    gate_up_b: Tensor
    down_a: Tensor
    down_b: Tensor
    ranks: Tensor


@triton.jit
def _slots_of(slots, pair, ok, k):
    """(slot of each pair, the first that is not 0, the last)."""
    mine = tl.load(slots + pair // k, mask=ok, other=0)
    return mine, tl.min(tl.where(mine > 0, mine, 2147483647), 0), tl.max(mine, 0)


@triton.jit
def add_low_rank(
    sums, pair, ok, e, c, c_ok, col, cols, low, low_row, b, slots, ranks, rank, k, E: tl.constexpr, PART: tl.constexpr,
    LOW: tl.constexpr,
):  # fmt: skip
    """sums [M, N] float32 + B (A x) of a tile of pairs of expert e. c: outputs, from `col` on of the `cols` of b
    [slots, E, rank, cols]. low f32[pairs, low_row] holds A x from LOW * rank on. PART: of ranks [slots, E, 3]."""
    mine, first, last = _slots_of(slots, pair, ok, k)
    for s in range(first, last + 1):
        held = tl.load(ranks + (s * E + e) * 3 + PART)
        there = ok & (mine == s)
        if (held > 0) & (tl.max(there.to(tl.int32), 0) > 0):
            at = pair.to(tl.int64) * low_row + LOW * rank
            b_row = (s * E + e.to(tl.int64)) * rank * cols + col
            for r in range(0, held):
                lows = tl.load(low + at + r, mask=there, other=0.0)
                ups = tl.load(b + b_row + r * cols + c, mask=c_ok, other=0.0).to(tl.float32)
                sums = tl.where(there[:, None], sums + lows[:, None] * ups[None, :], sums)
    return sums


@triton.jit
def _shrink(
    x, low, a, slots, ranks, starts, ends, firsts, pairs, tile_expert, width, x_row, k, per_row, rank, E: tl.constexpr,
    FIRST: tl.constexpr, PARTS: tl.constexpr, TILE: tl.constexpr, M: tl.constexpr, R: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """low f32[pairs, PARTS * rank] = A x of M pairs of a tile, one part. x has a row for per_row pairs, a
    [slots, E, PARTS * rank, width]. FIRST: of the parts, in ranks [slots, E, 3]. TILE: pairs of a tile of the groups."""
    n = tl.program_id(0)
    part = tl.program_id(2)
    e = tl.load(tile_expert + n)
    if e >= E:
        return
    inside = tl.load(starts + e) + (n - tl.load(firsts + e)) * TILE + tl.program_id(1) * M + tl.arange(0, M)
    ok = inside < tl.load(ends + e)
    pair = tl.load(pairs + inside, mask=ok, other=0)
    mine, first, last = _slots_of(slots, pair, ok, k)
    r = tl.arange(0, R)
    row = (pair // per_row).to(tl.int64) * x_row
    for s in range(first, last + 1):
        held = tl.load(ranks + (s * E + e) * 3 + FIRST + part)
        there = ok & (mine == s)
        if (held > 0) & (tl.max(there.to(tl.int32), 0) > 0):
            r_ok = r < held
            a_row = (((s * E + e.to(tl.int64)) * PARTS + part) * rank + r) * width
            sums = tl.zeros([M, R], tl.float32)
            for start in range(0, width, K):
                i = start + tl.arange(0, K)
                i_ok = i < width
                xs = tl.load(x + row[:, None] + i[None, :], mask=there[:, None] & i_ok[None, :], other=0.0)
                ws = tl.load(a + a_row[None, :] + i[:, None], mask=r_ok[None, :] & i_ok[:, None], other=0.0)
                sums = tl.dot(xs, ws, sums, input_precision="ieee")
            at = pair[:, None].to(tl.int64) * (PARTS * rank) + part * rank + r[None, :]
            tl.store(low + at, sums, mask=there[:, None] & r_ok[None, :])


def arguments(
    tiles: TileSizes, work: Groups, rows: int, x: Tensor, adapters: ExpertAdapters, *, pairs: int, k: int, down: bool
) -> tuple[Tensor, int, Tensor, Tensor, Tensor, int]:  # fmt: skip
    """A x of each pair whose slot has an adapter, and what a kernel of `moe` wants for `add_low_rank`: low, low_row, b, slots,
    ranks, rank. x [T, H] for gate and up, [pairs, F] for down. rows: of a tile."""
    a, b = (adapters.down_a, adapters.down_b) if down else (adapters.gate_up_a, adapters.gate_up_b)
    (_, experts, rank, _), width, parts = b.shape, a.shape[3], 1 if down else 2
    low = torch.empty((pairs, parts * rank), dtype=torch.float32, device=x.device)
    held = max(16, triton.next_power_of_2(rank))
    _shrink[(work.tile_expert.shape[0], triton.cdiv(rows, _ROWS), parts)](
        x, low, a, adapters.slots, adapters.ranks, *work, width, x.stride(0), k, 1 if down else k, rank, E=experts,
        FIRST=2 if down else 0, PARTS=parts, TILE=rows, M=_ROWS, R=held, K=choose_inputs(tiles, width, held, x.dtype),
        num_warps=4, num_stages=tiles.product.stages,
    )  # fmt: skip
    return low, parts * rank, b, adapters.slots, adapters.ranks, rank
