"""Indices of two levels (DeepSeek-AI 2026, DeepSeek-V4.1): one layer's scores select blocks of keys, and later layers select
keys among those."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from thalweg.hal.op import Sample, op
from thalweg.hal.ops.indexer import GATHER

_TABLE = np.array([[2, 5, 1], [4, 3, 0]], np.int32)


def _sample(name: str, heads: int, *chosen: list[int], **static: int) -> Sample:
    """chosen: blocks of each token, where the op reads some."""

    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        q, held = rng.normal(size=(4, heads, 16)), rng.normal(size=(6, 4, 16))
        seq, last = np.array([0, 0, 1, 1], np.int32), np.array([9, 11, -1, 6], np.int32)
        weights = rng.normal(size=(4, heads)).astype(np.float32)
        result = q.astype(np.float16), weights, held.astype(np.float16), _TABLE, seq, last
        return (*result, np.array(chosen, np.int32)) if chosen else result

    return Sample(name, make, static)


@op(
    samples=[_sample("2-of-6", 8, top=2, size=2), _sample("3-of-3", 2, top=3, size=5)],
    tolerances={"float32": 0, "bfloat16": 0},
)
def index_blocks(
    q: Tensor, weights: Tensor, held: Tensor, table: Tensor, seq: Tensor, last: Tensor, *, top: int, size: int
) -> Tensor:
    """Which blocks of `size` keys each of N tokens may read: q, weights, held, table and seq as of `index_top`, last i32[N],
    the number of the last key that it sees (-1: none) -> i32[N, top], -1 where there are fewer blocks. The last block that it
    sees is the first of them. Then come those with the largest scores of a key, of equal ones the earlier."""
    keys, parts = table.shape[1] * held.shape[1], []
    at = torch.arange(keys, device=q.device)
    number = torch.arange(-(-keys // size), device=q.device)
    for rows, by, of, here in _split(keys * held.shape[2], q, weights, seq, last):
        found = held[table[of.long()].long()].flatten(1, 2)
        score = torch.where(at[None] <= here[:, None], _scores(rows, by, found), -torch.inf)
        score = torch.nn.functional.pad(score, (0, -keys % size), value=-torch.inf)
        best = score.view(score.shape[0], -1, size).amax(-1)
        end = torch.div(here, size, rounding_mode="floor")
        best = torch.where((number[None] == end[:, None]) & (here >= 0)[:, None], torch.inf, best)
        parts.append(_pick(best, number[None].expand_as(best), top))
    return torch.cat(parts)


@op(
    samples=[
        _sample("3-of-2-by-2", 8, [4, 1], [0, 5], [-1, -1], [3, -1], top=3, size=2),
        _sample("2-of-1-by-5", 2, [1], [2], [-1], [0], top=2, size=5),
    ],
    tolerances={"float32": 0, "bfloat16": 0},
)
def index_among(
    q: Tensor, weights: Tensor, held: Tensor, table: Tensor, seq: Tensor, last: Tensor, chosen: Tensor, *, top: int, size: int
) -> Tensor:
    """`index_top` over the keys of some blocks: chosen i32[N, B], numbers of blocks of `size` keys (-1 = none), the others as
    of `index_blocks` -> i32[N, top], numbers of keys up to `last`, largest score first, of equal ones the earlier."""
    parts, rows_of_block = [], held.shape[1]
    within = torch.arange(size, device=q.device)
    for rows, by, of, here, picked in _split(chosen.shape[1] * size * held.shape[2], q, weights, seq, last, chosen):
        blocks = torch.sort(picked, dim=-1)[0].long()
        at = (blocks[..., None] * size + within).flatten(1)
        seen = (at >= 0) & (at <= here[:, None])
        there = torch.where(seen, at, 0)
        column = torch.div(there, rows_of_block, rounding_mode="floor").clamp(max=table.shape[1] - 1)
        block = table[of.long()].long().gather(1, column)
        score = torch.where(seen, _scores(rows, by, held[block, there % rows_of_block]), -torch.inf)
        parts.append(_pick(score, at, top))
    return torch.cat(parts)


def _split(values: int, *each: Tensor) -> zip[tuple[Tensor, ...]]:
    """Tokens in parts that gather few enough keys at once, each of so many values."""
    most = max(1, GATHER // max(1, values))
    return zip(*(torch.split(x, most) for x in each), strict=True)


def _scores(q: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """f32[N, K] of keys [N, K, D]. In float64 first, so that a token's selection does not depend on the rest of the batch."""
    score = torch.relu(torch.einsum("nhd,nkd->nhk", q.to(torch.float64), keys.to(torch.float64)))
    return torch.einsum("nhk,nh->nk", score, weights.to(torch.float64)).to(torch.float32)


def _pick(score: Tensor, number: Tensor, top: int) -> Tensor:
    """i32[N, top]: numbers of the largest scores, -1 for those of -inf."""
    best, order = torch.sort(score, dim=-1, descending=True, stable=True)
    chosen = torch.where(torch.isneginf(best), -1, number.gather(1, order))[:, :top]
    return torch.nn.functional.pad(chosen, (0, top - chosen.shape[1]), value=-1).to(torch.int32)
