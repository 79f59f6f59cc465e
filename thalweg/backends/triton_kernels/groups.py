"""Pairs (token, expert) in the order of their experts, cut into tiles of rows, whatever the routing: one launch for
few pairs, two for more."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from thalweg.backends.triton_kernels.dependent import declare_dependence, wait_for_launches
from thalweg.backends.triton_kernels.tiles import TileSizes

MOST_RANKED = 16384
"""Most pairs with places found by comparing each with each. More are sorted."""
FEW = 128
"""Most pairs that one program sorts and counts. More have more programs, and a second launch."""
_BLOCK = 32
_CHUNK = 128


class Groups(NamedTuple):
    """starts, ends, firsts i32[E]: expert e has the pairs from starts[e] to ends[e], and the tiles from firsts[e] on. pairs
    i32[T * k], by expert, those of one expert in their order. tile_expert i32[tiles]: E is an unused tile."""

    starts: Tensor
    ends: Tensor
    firsts: Tensor
    pairs: Tensor
    tile_expert: Tensor


@triton.jit
def _load_keys(ids, slots, p, count, k, slot_count, other, SLOTTED: tl.constexpr):
    """What pairs p [N] are sorted by: expert, then (SLOTTED) slot. other: of those that do not exist."""
    there = p < count
    key = tl.load(ids + p, mask=there, other=other)
    if SLOTTED:
        key = key * slot_count + tl.load(slots + p // k, mask=there, other=0)
        key = tl.where(there, key, other)
    return key


@triton.jit
def _place_pairs(
    ids, slots, pairs, p, count, k, slot_count, SLOTTED: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """Writes pairs p [BLOCK] where they belong: after those of lower keys, and those of the same that come before."""
    mine = _load_keys(ids, slots, p, count, k, slot_count, 2147483647, SLOTTED)
    before = tl.zeros([BLOCK], tl.int32)
    for start in range(0, count, CHUNK):
        q = start + tl.arange(0, CHUNK)
        other = _load_keys(ids, slots, q, count, k, slot_count, 2147483647, SLOTTED)
        lower = other[None, :] < mine[:, None]
        earlier = (other[None, :] == mine[:, None]) & (q[None, :] < p[:, None])
        before += tl.sum((lower | earlier).to(tl.int32), 1)
    tl.store(pairs + before, p, mask=p < count)


@triton.jit
def _cut_tiles(
    each, starts, ends, firsts, tile_expert, tiles, E: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Writes where the pairs and the tiles of each expert begin, and the expert of each tile. each [BLOCK]: pairs of an
    expert."""
    e = tl.arange(0, BLOCK)
    end = tl.cumsum(each, 0)
    cut = (each + ROWS - 1) // ROWS
    after = tl.cumsum(cut, 0)
    tl.store(starts + e, end - each, mask=e < E)
    tl.store(ends + e, end, mask=e < E)
    tl.store(firsts + e, after - cut, mask=e < E)
    for start in range(0, tiles, CHUNK):
        t = start + tl.arange(0, CHUNK)
        passed = (t[:, None] >= after[None, :]) & (e < E)[None, :]
        tl.store(tile_expert + t, tl.sum(passed.to(tl.int32), 1), mask=t < tiles)


@triton.jit(do_not_specialize=["count", "blocks"])
def _rank_and_count(
    ids, slots, pairs, counts, count, blocks, k, slot_count, RANK: tl.constexpr, SLOTTED: tl.constexpr, BLOCK: tl.constexpr,
    CHUNK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """The first `blocks` programs put BLOCK pairs where they belong. SLOTTED: those of one expert by slots [pairs / k], of
    slot_count. Each of the others counts the pairs of one expert."""
    wait_for_launches(DEPENDENT)
    n = tl.program_id(0)
    if n < blocks:
        if RANK:
            p = n * BLOCK + tl.arange(0, BLOCK)
            _place_pairs(ids, slots, pairs, p, count, k, slot_count, SLOTTED, BLOCK, CHUNK)
    else:
        e = n - blocks
        found = tl.zeros([CHUNK], tl.int32)
        for start in range(0, count, CHUNK):
            q = start + tl.arange(0, CHUNK)
            found += (tl.load(ids + q, mask=q < count, other=-1) == e).to(tl.int32)
        tl.store(counts + e, tl.sum(found, 0))


@triton.jit(do_not_specialize=["tiles"])
def _cut(
    counts, starts, ends, firsts, tile_expert, tiles, E: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    CHUNK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One program: `_cut_tiles` of the counted pairs."""
    wait_for_launches(DEPENDENT)
    e = tl.arange(0, BLOCK)
    each = tl.load(counts + e, mask=e < E, other=0)
    _cut_tiles(each, starts, ends, firsts, tile_expert, tiles, E, ROWS, BLOCK, CHUNK)


@triton.jit(do_not_specialize=["count", "tiles"])
def _group_few(
    ids, slots, pairs, starts, ends, firsts, tile_expert, count, tiles, k, slot_count, E: tl.constexpr, SLOTTED: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, PAIRS: tl.constexpr, CHUNK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One program for up to PAIRS pairs: `_rank_and_count` and `_cut`."""
    wait_for_launches(DEPENDENT)
    p, e = tl.arange(0, PAIRS), tl.arange(0, BLOCK)
    _place_pairs(ids, slots, pairs, p, count, k, slot_count, SLOTTED, PAIRS, CHUNK)
    each = tl.zeros([BLOCK], tl.int32)
    for start in range(0, count, CHUNK):
        q = start + tl.arange(0, CHUNK)
        other = tl.load(ids + q, mask=q < count, other=-1)
        each += tl.sum((other[:, None] == e[None, :]).to(tl.int32), 0)
    each = tl.where(e < E, each, 0)
    _cut_tiles(each, starts, ends, firsts, tile_expert, tiles, E, ROWS, BLOCK, CHUNK)


def assign(
    tiles: TileSizes, ids: Tensor, experts: int, m: int, slots: Tensor | None = None, slot_count: int = 1
) -> Groups:  # fmt: skip
    """Groups of the pairs ids i32[T, k] (or [T]), with tiles of m rows. Ids of `experts` or more have no expert. slots i32[T]:
    below slot_count, and pairs of one expert lie in their order."""
    flat = ids.reshape(-1)
    count = flat.shape[0]
    most = min(count, -(-count // m) + experts)
    held = torch.empty(4 * experts + count + most, dtype=torch.int32, device=ids.device)
    counts, starts, ends, firsts, pairs, owner = held.split([experts] * 4 + [count, most])
    by_slots = {"SLOTTED": slots is not None, **declare_dependence(tiles)}
    block = max(16, triton.next_power_of_2(experts))
    if count <= FEW:
        _group_few[(1,)](
            flat, flat if slots is None else slots, pairs, starts, ends, firsts, owner, count, most, ids.shape[-1], slot_count,
            E=experts, ROWS=m, BLOCK=block, PAIRS=FEW, CHUNK=16, num_warps=4, **by_slots,
        )  # fmt: skip
        return Groups(starts, ends, firsts, pairs, owner)
    ranked = count <= MOST_RANKED
    if not ranked:
        by = flat if slots is None else (ids * slot_count + slots[:, None]).reshape(-1)
        pairs = torch.argsort(by, stable=True).to(torch.int32)
    blocks = triton.cdiv(count, _BLOCK) if ranked else 0
    _rank_and_count[(blocks + experts,)](
        flat, flat if slots is None else slots, pairs, counts, count, blocks, ids.shape[-1], slot_count, RANK=ranked,
        BLOCK=_BLOCK, CHUNK=_CHUNK, num_warps=4, **by_slots,
    )  # fmt: skip
    _cut[(1,)](
        counts, starts, ends, firsts, owner, most, E=experts, ROWS=m, BLOCK=block, CHUNK=32, num_warps=4,
        **declare_dependence(tiles),
    )  # fmt: skip
    return Groups(starts, ends, firsts, pairs, owner)
