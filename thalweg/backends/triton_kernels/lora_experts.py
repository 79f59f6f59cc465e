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
from thalweg.backends.triton_kernels.lora import MOST_RANKS, choose_inputs
from thalweg.backends.triton_kernels.tiles import TileSizes

_ROWS = 16
"""Rows of a program. One number, so that a sum has one order."""
_APART = 4
"""Programs among which the slots of a tile are divided, at most."""


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
    return mine, tl.min(tl.where(mine > 0, mine, 1073741824), 0), tl.max(mine, 0)


@triton.jit
def add_low_rank(
    sums, pair, ok, e, c, c_ok, col, cols, low, low_row, b, slots, ranks, rank, k, E: tl.constexpr, PART: tl.constexpr,
    LOW: tl.constexpr, HELD: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """sums [M, N] float32 + B (A x) of a tile of pairs of expert e. c: outputs, from `col` on of the `cols` of b
    [slots, E, rank, cols]. low f32[pairs, low_row] holds A x from LOW * rank on. PART: of ranks [slots, E, 3].
    HELD: ranks that are multiplied at once."""
    mine, first, last = _slots_of(slots, pair, ok, k)
    at = pair.to(tl.int64) * low_row + LOW * rank
    for s in range(first, last + 1):
        there = ok & (mine == s)
        if tl.max(there.to(tl.int32), 0) > 0:
            held = tl.load(ranks + (s * E + e) * 3 + PART)
            if held > 0:
                b_row = (s * E + e.to(tl.int64)) * rank * cols + col
                added = tl.zeros([M, N], tl.float32)
                for start in tl.range(0, held, HELD, num_stages=1):
                    r = start + tl.arange(0, HELD)
                    lows = tl.load(low + at[:, None] + r[None, :], mask=there[:, None] & (r < held)[None, :], other=0.0)
                    ups = b + b_row + r.to(tl.int64)[:, None] * cols + c[None, :]
                    ups = tl.load(ups, mask=(r < held)[:, None] & c_ok[None, :], other=0.0)
                    if ups.dtype == tl.bfloat16:  # matrix units multiply both halves of a float32
                        high = lows.to(tl.bfloat16)
                        added = tl.dot((lows - high.to(tl.float32)).to(tl.bfloat16), ups, added)
                        added = tl.dot(high, ups, added)
                    else:
                        added = tl.dot(lows, ups.to(tl.float32), added, input_precision="ieee")
                sums = tl.where(there[:, None], sums + added, sums)
    return sums


@triton.jit
def _shrink(
    x, low, a, slots, ranks, starts, ends, firsts, pairs, tile_expert, width, x_row, k, per_row, rank, E: tl.constexpr,
    FIRST: tl.constexpr, PARTS: tl.constexpr, APART: tl.constexpr, TILE: tl.constexpr, M: tl.constexpr, R: tl.constexpr,
    K: tl.constexpr,
):  # fmt: skip
    """low f32[pairs, PARTS * rank] = A x of M pairs of a tile, one part. x has a row for per_row pairs, a
    [slots, E, PARTS * rank, width]. FIRST: of the parts, in ranks [slots, E, 3]. TILE: pairs of a tile of the groups.
    APART: programs that share the slots of a tile."""
    n = tl.program_id(0)
    part = tl.program_id(2) % PARTS
    e = tl.load(tile_expert + n)
    if e >= E:
        return
    inside = tl.load(starts + e) + (n - tl.load(firsts + e)) * TILE + tl.program_id(1) * M + tl.arange(0, M)
    ok = inside < tl.load(ends + e)
    pair = tl.load(pairs + inside, mask=ok, other=0)
    mine, first, last = _slots_of(slots, pair, ok, k)
    r = tl.arange(0, R)
    row = (pair // per_row).to(tl.int64) * x_row
    for s in range(first + tl.program_id(2) // PARTS, last + 1, APART):
        there = ok & (mine == s)
        held = 0
        if tl.max(there.to(tl.int32), 0) > 0:
            held = tl.load(ranks + (s * E + e) * 3 + FIRST + part)
        if held > 0:
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


def ranks_at_once(adapters: ExpertAdapters | None) -> int:
    """HELD of `add_low_rank`."""
    return 16 if adapters is None else min(MOST_RANKS, max(16, triton.next_power_of_2(adapters.down_b.shape[2])))


def arguments(
    tiles: TileSizes, work: Groups, rows: int, x: Tensor, adapters: ExpertAdapters, *, pairs: int, k: int, down: bool
) -> tuple[Tensor, int, Tensor, Tensor, Tensor, int]:  # fmt: skip
    """A x of each pair whose slot has an adapter, and what a kernel of `moe` wants for `add_low_rank`: low, low_row, b, slots,
    ranks, rank. work: with the pairs of an expert in the order of their slots. x [T, H] for gate and up, [pairs, F] for down.
    rows: of a tile."""
    a, b = (adapters.down_a, adapters.down_b) if down else (adapters.gate_up_a, adapters.gate_up_b)
    (slots, experts, rank, _), width, parts = b.shape, a.shape[3], 1 if down else 2
    low = torch.empty((pairs, parts * rank), dtype=torch.float32, device=x.device)
    held, apart = max(16, triton.next_power_of_2(rank)), max(1, min(_APART, slots - 1))
    _shrink[(work.tile_expert.shape[0], triton.cdiv(rows, _ROWS), parts * apart)](
        x, low, a, adapters.slots, adapters.ranks, *work, width, x.stride(0), k, 1 if down else k, rank, E=experts,
        FIRST=2 if down else 0, PARTS=parts, APART=apart, TILE=rows, M=_ROWS, R=held,
        K=choose_inputs(tiles, width, held, x.dtype), num_warps=4, num_stages=tiles.product.stages,
    )  # fmt: skip
    return low, parts * rank, b, adapters.slots, adapters.ranks, rank
