"""Attention to the encoder output of a sequence's source, kept whole in the sequence's block of a cross group."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from thalweg.hal.op import Sample, op

PIECE = 16
"""Tokens per gather of keys."""


def _write_sample(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    held, new = rng.normal(size=(5, 2, 7, 8)), rng.normal(size=(2, 7, 16))
    table = np.array([[3], [0], [1], [4]], np.int32)
    return held.astype(np.float16), new.astype(np.float16), table, np.array([2, 0], np.int32)


@op(samples=[Sample("2-of-4", _write_sample)], tolerances={"float32": 0, "bfloat16": 0})
def cross_write(held: Tensor, new: Tensor, table: Tensor, row: Tensor) -> Tensor:
    """Keys or values of N sources into the blocks of their sequences: held [blocks, G, n, D], new [N, n, G * D], table
    i32[S, 1], row i32[N], the sequence of each -> held. Kernels may write in place: use the result."""
    blocks = table[:, 0].index_select(0, row.long()).long()
    return held.index_put((blocks,), new.reshape(*new.shape[:2], held.shape[1], held.shape[3]).transpose(1, 2))


def _attend_sample(
    name: str, heads: int, sources: int, dim: int, query: tuple[int, ...], seen: tuple[int, ...] = (), group: int = 1,
    **static: float,
) -> Sample:  # fmt: skip
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        q = rng.normal(size=(sum(query), heads * group, dim))
        keys, values = (rng.normal(size=(6, heads, sources, dim)) for _ in range(2))
        table = np.array([[4], [1], [3], [2]], np.int32)[: len(query)]
        token_seq = np.repeat(np.arange(len(query), dtype=np.int32), query)
        more = (np.resize(np.array(seen, np.int32), sum(query)),) if seen else ()
        return *(a.astype(np.float16) for a in (q, keys, values)), table, token_seq, *more

    return Sample(name, make, {"scale": dim**-0.5} | static)


def _weights_sample(name: str, sources: int, query: tuple[int, ...]) -> Sample:
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        q, keys = rng.normal(size=(sum(query), 2, 16)), rng.normal(size=(6, 2, sources, 16))
        table = np.array([[4], [1], [3]], np.int32)[: len(query)]
        token_seq = np.repeat(np.arange(len(query), dtype=np.int32), query)
        return q.astype(np.float16), keys.astype(np.float16), table, token_seq

    return Sample(name, make, {"scale": 0.25})


@op(
    samples=[_weights_sample("few", 50, (1, 3)), _weights_sample("many", 33, (4, 1, 19))],
    tolerances={"float32": 1e-5, "bfloat16": 1e-3},
)
def cross_weights(q: Tensor, keys: Tensor, table: Tensor, token_seq: Tensor, *, scale: float) -> Tensor:
    """softmax(q k^T * scale), the weights with which tokens attend to the vectors of their source: q [N, H, D], keys
    [blocks, H, n, D], table i32[S, 1], token_seq i32[N] -> f32[N, H, n]. In float64, as `cross_attention`."""
    block = table[:, 0].index_select(0, token_seq.long()).long()
    parts = []
    for rows, at in zip(torch.split(q, PIECE), torch.split(block, PIECE), strict=True):
        scores = torch.einsum("thd,thnd->thn", rows.to(torch.float64), keys.index_select(0, at).to(torch.float64)) * scale
        parts.append(torch.softmax(scores, -1).to(torch.float32))
    return torch.cat(parts)


@op(
    samples=[
        _attend_sample("decode", 3, 50, 16, (1, 1, 1)),
        _attend_sample("prompts", 2, 33, 32, (4, 1, 19)),
        _attend_sample("lengths", 2, 9, 16, (3, 1, 18), (1, 9, 2, 4, 0, 5, 7)),
        _attend_sample("groups", 2, 12, 16, (2, 1), (12, 0, 3), 3),
        _attend_sample("long", 2, 300, 64, (1, 2)),
        _attend_sample("capped", 2, 12, 16, (2, 1), (12, 0, 3), 3, softcap=0.7),
    ],
    tolerances={"float32": 1e-5, "bfloat16": 1e-2},
)
def cross_attention(
    q: Tensor, keys: Tensor, values: Tensor, table: Tensor, token_seq: Tensor, seen: Tensor | None = None, *, scale: float,
    softcap: float = 0.0,
) -> Tensor:  # fmt: skip
    """softmax(q k^T * scale) v over all of a sequence's source: q [T, G * H, D], keys and values [blocks, H, n, D], table
    i32[S, 1], token_seq i32[T] -> [T, G * H, D]. Neighbouring G heads of q share one of keys. seen i32[T]: vectors of the
    source that each token attends to, the first ones. With 0 the result is 0. None: n. In float64, so that a token does not
    depend on the rest of the batch. softcap: scores become softcap * tanh(score / softcap); 0 = off."""
    block = table[:, 0].index_select(0, token_seq.long()).long()
    parts, heads = [], keys.shape[1]
    counts = [None] * len(torch.split(block, PIECE)) if seen is None else torch.split(seen, PIECE)
    for rows, at, count in zip(torch.split(q, PIECE), torch.split(block, PIECE), counts, strict=True):
        k, v = (held.index_select(0, at).to(torch.float64) for held in (keys, values))
        scores = torch.einsum("thgd,thnd->thgn", rows.reshape(len(rows), heads, -1, rows.shape[2]).to(torch.float64), k) * scale
        scores = softcap * torch.tanh(scores / softcap) if softcap else scores
        if count is not None:
            count = count[:, None, None, None]
            scores = scores.masked_fill(torch.arange(k.shape[2], device=k.device) >= count.clamp(min=1), -torch.inf)
        out = torch.einsum("thgn,thnd->thgd", torch.softmax(scores, -1), v).flatten(1, 2)
        parts.append((out if count is None else out.where(count[:, 0] > 0, 0.0)).to(q.dtype))
    return torch.cat(parts)
