"""Sparse attention (DeepSeek-AI 2025, DeepSeek Sparse Attention): scores of small keys in separate pages select tokens, and
attention reads only those."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from thalweg.hal.op import Sample, op
from thalweg.hal.step import SCRATCH

GATHER = 1 << 24
"""Values of keys gathered at once."""
_TABLE = np.array([[2, 5, 1], [4, 3, 0]], np.int32)


def _write_sample(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    held, new = rng.normal(size=(6, 4, 16)), rng.normal(size=(5, 16))
    seq, positions = np.array([0, 0, 0, 1, 2], np.int32), np.array([3, 4, 5, 6, 0], np.int32)
    table = np.concatenate([_TABLE, np.full((1, 3), 3, np.int32)])
    slots = np.array([3, 1, 0], np.int32)
    return held.astype(np.float16), new.astype(np.float16), table, seq, positions, slots


@op(samples=[Sample("5-of-16", _write_sample)], tolerances={"float32": 0, "bfloat16": 0})
def index_write(held: Tensor, new: Tensor, table: Tensor, token_seq: Tensor, positions: Tensor, slots: Tensor) -> Tensor:
    """Keys of a step's tokens into their pages: held [blocks, n, D], new [T, D], table i32[S, B], token_seq, positions i32[T],
    slots i32[S] -> held. Those of padding (slot 0) go to the scratch block. Kernels may write in place: use the result."""
    return held.index_put(slot_mapping(held, table, token_seq, positions, slots), new)


def slot_mapping(held: Tensor, table: Tensor, token_seq: Tensor, positions: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    """Of each token its block and its place in there."""
    size, seq = held.shape[1], token_seq.long()
    column = torch.div(positions, size, rounding_mode="floor").clamp(max=table.shape[1] - 1).long()
    block = torch.where(slots[seq] == SCRATCH, SCRATCH, table[seq, column]).long()
    return block, (positions % size).long()


def _top_sample(name: str, heads: int, top: int) -> Sample:
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        q, held = rng.normal(size=(4, heads, 16)), rng.normal(size=(6, 4, 16))
        seq, positions = np.array([0, 0, 1, 1], np.int32), np.array([9, 11, 2, 7], np.int32)
        weights = rng.normal(size=(4, heads)).astype(np.float32)
        return q.astype(np.float16), weights, held.astype(np.float16), _TABLE, seq, positions

    return Sample(name, make, {"top": top})


def _long_top_sample(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Keys that are equal, as those of padding are: of equal scores the earlier counts."""
    q, held = rng.normal(size=(5, 6, 48)), rng.normal(size=(90, 16, 48))
    held[1::2] = held[0]
    table = rng.permutation(88).astype(np.int32).reshape(2, 44)
    seq, positions = np.array([0, 0, 1, 1, 1], np.int32), np.array([703, 511, 512, 700, 0], np.int32)
    return q.astype(np.float16), rng.normal(size=(5, 6)).astype(np.float32), held.astype(np.float16), table, seq, positions


@op(
    samples=[_top_sample("5-by-8", 8, 5), _top_sample("3-by-2", 2, 3), Sample("200-of-704", _long_top_sample, {"top": 200})],
    tolerances={"float32": 0, "bfloat16": 0},
)
def index_top(q: Tensor, weights: Tensor, held: Tensor, table: Tensor, seq: Tensor, positions: Tensor, *, top: int) -> Tensor:
    """Which tokens each of N tokens reads: q [N, H, D], weights f32[N, H], held [blocks, n, D], table i32[S, B], seq and
    positions i32[N] -> i32[N, top], the `top` positions up to its own with the largest scores, largest first, of equal ones
    the earlier. -1 where there are fewer. With k the key of a position:

        score = sum_h weights_h relu(q_h . k)

    In float64 and rounded to float32, so that a token's selection does not depend on the rest of the batch."""
    keys = table.shape[1] * held.shape[1]
    at, parts = torch.arange(keys, device=q.device), []
    most = max(1, GATHER // (keys * held.shape[2]))
    for rows, by, of, here in zip(*(torch.split(each, most) for each in (q, weights, seq, positions)), strict=True):
        found = held[table[of.long()].long()].flatten(1, 2).to(torch.float64)
        scores = torch.relu(torch.einsum("nhd,nkd->nhk", rows.to(torch.float64), found))
        score = torch.einsum("nhk,nh->nk", scores, by.to(torch.float64)).to(torch.float32)
        seen = at[None] <= here[:, None]
        best, order = torch.sort(torch.where(seen, score, -torch.inf), dim=-1, descending=True, stable=True)
        order = torch.where(torch.isneginf(best), -1, order)[:, :top]
        parts.append(torch.nn.functional.pad(order, (0, top - order.shape[1]), value=-1).to(torch.int32))
    return torch.cat(parts)


def _attend_sample(name: str, heads: int, dim: int, latent: int) -> Sample:
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        q, held = rng.normal(size=(3, heads, dim)), rng.normal(size=(6, 4, dim))
        chosen = np.array([[3, 0, 11, 7], [2, 5, 1, 0], [1, 0, -1, -1]], np.int32)
        return q.astype(np.float16), held.astype(np.float16), _TABLE, np.array([0, 1, 1], np.int32), chosen

    return Sample(name, make, {"scale": dim**-0.5, "latent": latent})


def _long_attend_sample(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """More keys than kernels read at once, heads that they divide, and gaps in the list."""
    q, held = rng.normal(size=(3, 50, 48)), rng.normal(size=(30, 16, 48))
    chosen = np.stack([rng.permutation(224)[:200] for _ in range(3)]).astype(np.int32)
    chosen[1, 77:], chosen[2, ::3] = -1, -1
    table = rng.permutation(28).astype(np.int32).reshape(2, 14)
    return q.astype(np.float16), held.astype(np.float16), table, np.array([0, 1, 1], np.int32), chosen


@op(
    samples=[_attend_sample("24-of-32", 3, 32, 24),
             Sample("32-of-48-long", _long_attend_sample, {"scale": 48**-0.5, "latent": 32})],
    tolerances={"float32": 1e-5, "bfloat16": 1e-2},
)  # fmt: skip
def chosen_attention(
    q: Tensor, held: Tensor, table: Tensor, seq: Tensor, chosen: Tensor, *, scale: float, latent: int
) -> Tensor:
    """softmax(q k^T * scale) v over the selected tokens: q [N, H, D], held [blocks, n, D], of which the first `latent` values
    are a key's value, table i32[S, B], seq i32[N], chosen i32[N, K] (positions, -1 = none) -> [N, H, latent]. In float64, so
    that a token does not depend on the rest of the batch."""
    size, parts = held.shape[1], []
    most = max(1, GATHER // (chosen.shape[1] * held.shape[2]))
    for rows, of, picked in zip(*(torch.split(each, most) for each in (q, seq, chosen)), strict=True):
        there = picked.clamp(min=0).long()
        block = table[of.long()].gather(1, torch.div(there, size, rounding_mode="floor")).long()
        hidden = (picked < 0)[..., None]
        keys = torch.where(hidden, 0, held[block, there % size].to(torch.float64))
        scores = torch.einsum("nhd,nkd->nhk", rows.to(torch.float64), keys) * scale
        weights = torch.softmax(scores.masked_fill(hidden.transpose(1, 2), -torch.inf), -1)
        parts.append(torch.einsum("nhk,nkd->nhd", weights, keys[..., :latent]).to(q.dtype))
    return torch.cat(parts)


def _blocks_sample(name: str, heads: int, **static: int) -> Sample:
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        q, held = rng.normal(size=(4, heads, 16)), rng.normal(size=(6, 4, 16))
        seq, positions = np.array([0, 0, 1, 1], np.int32), np.array([9, 11, 2, 7], np.int32)
        return q.astype(np.float16), held.astype(np.float16), _TABLE, seq, positions

    return Sample(name, make, static)


def _long_blocks_sample(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    q, held, table = rng.normal(size=(3, 2, 32)), rng.normal(size=(90, 16, 32)), rng.permutation(88).astype(np.int32)
    seq, positions = np.array([0, 1, 1], np.int32), np.array([703, 640, 31], np.int32)
    return q.astype(np.float16), held.astype(np.float16), table.reshape(2, 44), seq, positions


@op(
    samples=[
        _blocks_sample("3-of-2", 2, top=3, size=2, local=1),
        _blocks_sample("2-of-3", 1, top=2, size=3, local=0),
        Sample("8-of-22", _long_blocks_sample, {"top": 8, "size": 32, "local": 2}),
    ],
    tolerances={"float32": 0, "bfloat16": 0},
)
def block_top(
    q: Tensor, held: Tensor, table: Tensor, seq: Tensor, positions: Tensor, *, top: int, size: int, local: int
) -> Tensor:
    """Which blocks of `size` keys each of N tokens reads, for each of G heads: q [N, G, D], held [blocks, n, D], table
    i32[S, B], seq and positions i32[N] -> i32[N, G, top], numbers of blocks. First the token's own block and those before it,
    `local` together, then those with the largest scores, of equal ones the earlier. -1 where there are fewer. A block's score
    is the largest q . k of its keys up to the token. In float64 and rounded to float32, as in `index_top`."""
    keys = table.shape[1] * held.shape[1]
    blocks = -(-keys // size)
    at, number, parts = torch.arange(keys, device=q.device), torch.arange(blocks, device=q.device), []
    most = max(1, GATHER // (keys * held.shape[2]))
    for rows, of, here in zip(*(torch.split(each, most) for each in (q, seq, positions)), strict=True):
        found = held[table[of.long()].long()].flatten(1, 2).to(torch.float64)
        scores = torch.einsum("ngd,nkd->ngk", rows.to(torch.float64), found).to(torch.float32)
        scores = torch.where((at[None] <= here[:, None])[:, None], scores, -torch.inf)
        scores = torch.nn.functional.pad(scores, (0, blocks * size - keys), value=-torch.inf)
        scores = scores.view(*scores.shape[:2], blocks, size)
        own = torch.div(here, size, rounding_mode="floor")[:, None]
        near = (number[None] <= own) & (number[None] > own - local)
        best, order = torch.sort(torch.where(near[:, None], torch.inf, scores.amax(-1)), dim=-1, descending=True, stable=True)
        order = torch.where(torch.isneginf(best), -1, order)[..., :top]
        parts.append(torch.nn.functional.pad(order, (0, top - order.shape[-1]), value=-1).to(torch.int32))
    return torch.cat(parts)


def _read_sample(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    q, keys, values = rng.normal(size=(3, 4, 16)), rng.normal(size=(6, 4, 2, 16)), rng.normal(size=(6, 4, 2, 16))
    chosen = np.array([[[3, 0], [2, 3]], [[1, 0], [1, -1]], [[0, -1], [0, -1]]], np.int32)
    seq, positions = np.array([0, 1, 1], np.int32), np.array([10, 5, 1], np.int32)
    return *(x.astype(np.float16) for x in (q, keys, values)), _TABLE, seq, positions, chosen


def _long_read_sample(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    q, keys, values = rng.normal(size=(3, 8, 32)), rng.normal(size=(30, 16, 2, 32)), rng.normal(size=(30, 16, 2, 32))
    chosen = np.stack([rng.permutation(6)[:5] for _ in range(6)]).astype(np.int32).reshape(3, 2, 5)
    chosen[0, 1, 2:] = -1
    table, seq = rng.permutation(28).astype(np.int32).reshape(2, 14), np.array([0, 1, 1], np.int32)
    return *(x.astype(np.float16) for x in (q, keys, values)), table, seq, np.array([223, 200, 190], np.int32), chosen


@op(
    samples=[Sample("2-blocks-of-3", _read_sample, {"scale": 0.25, "size": 3}),
             Sample("5-blocks-of-32", _long_read_sample, {"scale": 32**-0.5, "size": 32})],
    tolerances={"float32": 1e-5, "bfloat16": 1e-2},
)  # fmt: skip
def block_attention(
    q: Tensor, keys: Tensor, values: Tensor, table: Tensor, seq: Tensor, positions: Tensor, chosen: Tensor, *, scale: float,
    size: int,
) -> Tensor:  # fmt: skip
    """softmax(q k^T * scale) v over the keys up to each token in its selected blocks of `size`: q [N, H, D], keys and values
    [blocks, n, G, D], of which each serves H / G heads, table i32[S, B], seq and positions i32[N], chosen i32[N, G, K] (-1 =
    none) -> [N, H, D]. In float64, so that a token does not depend on the rest of the batch."""
    per, group, parts = keys.shape[1], torch.arange(keys.shape[2], device=q.device)[None, :, None], []
    inside = torch.arange(size, device=q.device)
    most = max(1, GATHER // (chosen.shape[2] * size * keys.shape[2] * keys.shape[3]))
    for rows, of, here, picked in zip(*(torch.split(each, most) for each in (q, seq, positions, chosen)), strict=True):
        at = (picked[..., None] * size + inside).flatten(2).long()
        hidden = (picked < 0).repeat_interleave(size, -1) | (at > here[:, None, None])
        at = torch.where(hidden, 0, at)
        block = table[of.long()].long().gather(1, torch.div(at, per, rounding_mode="floor").flatten(1)).view_as(at)
        k, v = (torch.where(hidden[..., None], 0, x[block, at % per, group].to(torch.float64)) for x in (keys, values))
        heads = rows.to(torch.float64).unflatten(1, (keys.shape[2], -1))
        scores = (torch.einsum("nghd,ngkd->nghk", heads, k) * scale).masked_fill(hidden[:, :, None], -torch.inf)
        parts.append(torch.einsum("nghk,ngkd->nghd", torch.softmax(scores, -1), v).flatten(1, 2).to(q.dtype))
    return torch.cat(parts)
