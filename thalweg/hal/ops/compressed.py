"""Compressed attention (DeepSeek-AI 2026, DeepSeek-V4): windows of tokens are pooled into entries. An entry is a key and
its value. A token reads the keys of the last tokens, and entries of closed windows before it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from thalweg.hal.op import Sample, op
from thalweg.hal.ops.indexer import GATHER

_TABLE = np.array([[2, 5, 1], [4, 3, 0]], np.int32)


def _pool_sample(name: str, overlaps: bool) -> Sample:
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        held = rng.normal(size=(6, 4, 32 if overlaps else 16)).astype(np.float16)
        bias = rng.normal(size=(3, 16 if overlaps else 8)).astype(np.float32)
        return held, _TABLE, np.array([0, 0, 1, 0], np.int32), np.array([2, 8, 5, -1], np.int32), bias

    return Sample(name, make, {"overlaps": overlaps})


def _wide_pool_sample(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """More values than a vector holds, and more tokens than a block."""
    held, bias = rng.normal(size=(6, 4, 80)).astype(np.float16), rng.normal(size=(7, 40)).astype(np.float32)
    return held, _TABLE, np.array([0, 1], np.int32), np.array([11, 6], np.int32), bias


@op(
    samples=[_pool_sample("3", False), _pool_sample("3-and-3", True), Sample("7-wide", _wide_pool_sample, {"overlaps": False})],
    tolerances={"float32": 1e-6, "bfloat16": 1e-2},
)
def pool_windows(held: Tensor, table: Tensor, seq: Tensor, ends: Tensor, bias: Tensor, *, overlaps: bool) -> Tensor:
    """One entry for each of N windows of R tokens: held [blocks, n, W], the rows of a sequence's tokens, values and then gates,
    table i32[S, B], seq i32[N], ends i32[N], the position of each window's last token (-1: the result is zeros), bias
    f32[R, W / 2] -> [N, D].

    An entry is the sum over the window's tokens of softmax(gate + bias) * value, the softmax over these tokens, per value. With
    `overlaps`, values and gates have two halves of D. The entry has the second halves of its own tokens and the first halves of
    the R tokens before, if there are any. In float64, so that an entry does not depend on the batch."""
    size, parts, rate = held.shape[1], [], bias.shape[0]
    back = torch.arange(-(2 * rate if overlaps else rate) + 1, 1, device=held.device)
    most = max(1, GATHER // (back.shape[0] * held.shape[2]))
    for of, last in zip(torch.split(seq, most), torch.split(ends, most), strict=True):
        at = last[:, None].long() + back
        there = at.clamp(min=0)
        block = table[of.long()].long().gather(1, torch.div(there, size, rounding_mode="floor"))
        value, gate = held[block, there % size].to(torch.float64).chunk(2, -1)
        if overlaps:
            (before, value), (past, gate) = (_halves(x, rate) for x in (value, gate))
            first, second = bias.to(torch.float64).chunk(2, -1)
            value, gate = torch.cat([before, value], 1), torch.cat([past + first, gate + second], 1)
        else:
            gate = gate + bias.to(torch.float64)
        hidden = (at < 0)[..., None]
        weights = torch.softmax(torch.where(hidden, -torch.inf, gate), 1)
        entry = torch.where(hidden, 0, weights * value).sum(1)
        parts.append(torch.where(last[:, None] < 0, 0, entry).to(held.dtype))
    return torch.cat(parts)


def _halves(x: Tensor, rate: int) -> tuple[Tensor, Tensor]:
    """The first half of the values of the first `rate` tokens, and the second of the others: x [N, 2 * rate, 2 * D]."""
    first, second = x.chunk(2, -1)
    return first[:, :rate], second[:, rate:]


def _attend_sample(name: str, entries: int) -> Sample:
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        q, sinks = rng.normal(size=(3, 4, 16)).astype(np.float16), rng.normal(size=4).astype(np.float32)
        held, others = (rng.normal(size=(6, n, 16)).astype(np.float16) for n in (4, 2))
        chosen = np.array([[1, 0, 3], [0, -1, -1], [-1, -1, -1]], np.int32)[:, :entries]
        seq, positions = np.array([0, 1, 1], np.int32), np.array([9, 6, 1], np.int32)
        return q, held, _TABLE, seq, positions, sinks, others, _TABLE[:, ::-1].copy(), chosen

    return Sample(name, make, {"scale": 0.25, "window": 5})


def _long_attend_sample(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    q, sinks = rng.normal(size=(3, 50, 32)).astype(np.float16), rng.normal(size=50).astype(np.float32)
    held, others = (rng.normal(size=(30, n, 32)).astype(np.float16) for n in (16, 8))
    chosen = np.stack([rng.permutation(100)[:70] for _ in range(3)]).astype(np.int32)
    chosen[1, 11:] = -1
    table, seq = rng.permutation(28).astype(np.int32).reshape(2, 14), np.array([0, 1, 1], np.int32)
    return q, held, table, seq, np.array([220, 130, 20], np.int32), sinks, others, table[:, ::-1].copy(), chosen


@op(
    samples=[_attend_sample("5-and-3", 3), _attend_sample("5", 0),
             Sample("100-and-70", _long_attend_sample, {"scale": 32**-0.5, "window": 100})],
    tolerances={"float32": 1e-5, "bfloat16": 1e-2},
)  # fmt: skip
def compressed_attention(
    q: Tensor, held: Tensor, table: Tensor, seq: Tensor, positions: Tensor, sinks: Tensor, entries: Tensor, entry_table: Tensor,
    chosen: Tensor, *, scale: float, window: int,
) -> Tensor:  # fmt: skip
    """softmax(q k^T * scale) k over the last `window` tokens' keys and the chosen entries, with a sink per head in the
    denominator: q [N, H, D], held [blocks, n, D] with table i32[S, B], entries [blocks, m, D] with entry_table i32[S, C],
    seq and positions i32[N], sinks f32[H], chosen i32[N, K] (numbers of entries, -1 = none) -> [N, H, D]. In float64, so that a
    token does not depend on the rest of the batch."""
    parts, back = [], torch.arange(-window + 1, 1, device=q.device)
    most = max(1, GATHER // ((window + chosen.shape[1]) * held.shape[2]))
    each = (torch.split(x, most) for x in (q, seq, positions, chosen))
    for rows, of, here, picked in zip(*each, strict=True):
        at = torch.cat([here[:, None].long() + back, picked.long()], 1)
        near, far = _gather(held, table, of, at[:, :window]), _gather(entries, entry_table, of, at[:, window:])
        hidden = at < 0
        keys = torch.where(hidden[..., None], 0, torch.cat([near, far], 1))
        scores = torch.einsum("nhd,nkd->nhk", rows.to(torch.float64), keys) * scale
        scores = scores.masked_fill(hidden[:, None], -torch.inf)
        sink = sinks.to(torch.float64)[None, :, None].expand(scores.shape[0], -1, 1)
        weights = torch.softmax(torch.cat([scores, sink], -1), -1)[..., :-1]
        parts.append(torch.einsum("nhk,nkd->nhd", weights, keys).to(q.dtype))
    return torch.cat(parts)


def _gather(held: Tensor, table: Tensor, seq: Tensor, at: Tensor) -> Tensor:
    """f64[N, K, D]: the rows with these numbers, of a sequence each."""
    size, there = held.shape[1], at.clamp(min=0)
    column = torch.div(there, size, rounding_mode="floor").clamp(max=table.shape[1] - 1)
    block = table[seq.long()].long().gather(1, column)
    return held[block, there % size].to(torch.float64)
