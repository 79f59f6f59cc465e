"""Embeddings of n-grams as inputs of a layer (Qwen 4), and the rows of earlier tokens that they need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import accumulate
from typing import Any

import torch

from thalweg.hal import ops
from thalweg.hal.ops.ngrams import split_factors
from thalweg.hal.ops.pointwise import sigmoid, silu
from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow, MixerRef
from thalweg.models.layers.linear import Linear
from thalweg.models.weights import ParamSpec, Weight


class KeptRows:
    """Nothing is computed: what is around the layer writes and reads the rows."""

    backend = None

    def __init__(self, ctx: Context, spec: declared.KeptRows, weights: Mapping[str, Any], place: MixerRef) -> None:
        self.spec = spec.keeps(ctx.dtype, ctx.kv_dtype, ctx.max_len, ctx.mesh.tensor.size)
        (self.layout,) = self.spec.parts(ctx.block_tokens)
        self.specs: dict[str, Any] = {}

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> None:
        """x: ignored."""


class RowsBefore:
    """Writes a row for each token of a step, and reads those of earlier tokens of the sequence."""

    def __init__(self, ctx: Context, place: MixerRef, size: int) -> None:
        self._place, self._write = place, ctx.bind(ops.index_write, size=size)

    def __call__(self, rows: Array, flow: Flow, back: Array) -> tuple[Array, Array]:
        """rows [T, size], back i64[K], how far before the token -> ([T, K, size], bool[T, K]: is there such a token?)"""
        batch, at = flow.batch, self._place
        table = batch.block_tables[at.group]
        held = self._write(flow.caches[at.layer], rows, table, batch.token_seq, batch.positions, batch.slots)
        flow.caches[at.layer] = held
        where = batch.positions.long()[:, None] - back
        there, size = where.clamp(min=0), held.shape[1]
        column = torch.div(there, size, rounding_mode="floor").clamp(max=table.shape[1] - 1)
        block = table[batch.token_seq.long()].long().gather(1, column)
        return held[block, there % size], where >= 0


class NGramInput:
    """Streams [T, n, hidden] -> the addition to them."""

    def __init__(
        self, ctx: Context, spec: declared.NGramInput, weights: Mapping[str, Any], ids: MixerRef, convolved: MixerRef,
        norm: Callable[..., Any],
    ) -> None:  # fmt: skip
        """ids, convolved: places of the rows that it keeps. norm: the layer that norms streams."""
        self._spec = spec
        wide = spec.streams * spec.hidden
        self._ids, self._before = RowsBefore(ctx, ids, 1), RowsBefore(ctx, convolved, wide)
        self._key, self._value = Linear(ctx, weights["key"]), Linear(ctx, weights["value"])
        self._norms = {k: norm(ctx, spec.hidden, spec.eps, weights[k]) for k in ("norm_key", "norm_query", "norm_conv")}
        rows = spec.rows
        facts = {
            "factors": split_factors(spec.multipliers), "rows": rows, "offsets": tuple(accumulate(rows[:-1], initial=0)),
            "near": tuple(range(1, spec.size)), "far": tuple(spec.size * i for i in reversed(range(spec.taps))),
        }  # fmt: skip
        self._rows = ctx.bind(ops.hash_ngrams, largest=max(rows))
        self.specs: dict[str, Any] = {
            "key": self._key.specs, "value": self._value.specs, **{k: n.specs for k, n in self._norms.items()},
            "table": {"weight": ParamSpec(weights["table"]["weight"], ctx.dtype)},
            "conv": {"weight": ParamSpec(weights["conv"]["weight"], ctx.dtype)},
            "facts": {
                k: ParamSpec(Weight(()), "int32", make=partial(torch.tensor, [v], dtype=torch.int32)) for k, v in facts.items()
            },
        }  # fmt: skip

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        n, hidden = x.shape[1:]
        embedded = p["table"]["weight"][self._hash(p["facts"], flow).long()].flatten(1)
        key = self._norms["norm_key"](p["norm_key"], self._key(p["key"], embedded, flow).view(x.shape))
        query = self._norms["norm_query"](p["norm_query"], x)
        gate = (key * query).sum(-1, keepdim=True) / hidden**0.5
        gate = gate.abs().clamp(min=1e-6).sqrt() * gate.sign()
        gated = sigmoid(gate) * self._value(p["value"], embedded, flow)[:, None]
        entered = self._norms["norm_conv"](p["norm_conv"], gated).flatten(1)
        rows, there = self._before(entered, flow, p["facts"]["far"][0])
        taps, total = p["conv"]["weight"].squeeze(1).to(torch.float32), None
        for i in range(rows.shape[1]):
            part = torch.where(there[:, i, None], rows[:, i], 0).to(torch.float32) * taps[:, i]
            total = part if total is None else total + part
        assert total is not None
        return gated + silu(total).to(x.dtype).view(-1, n, hidden)

    def _hash(self, facts: Mapping[str, Any], flow: Flow) -> Array:
        """i32[T, heads]: the rows of each token's n-grams in the table."""
        tokens, end = flow.batch.tokens.long(), self._spec.end
        rows, there = self._ids(tokens[:, None].to(torch.float32), flow, facts["near"][0])
        before = torch.where(there, rows[..., 0].long(), end)
        inside, ids = torch.ones_like(there[:, 0]), [tokens]
        for i in range(self._spec.size - 1):
            inside = inside & (before[:, i] != end)
            ids.append(torch.where(inside, before[:, i], end))
        return self._rows(torch.stack(ids, 1).to(torch.int32), *(facts[k][0] for k in ("factors", "rows", "offsets")))
