"""Cross-attention to the encoder's output. Keys and values are computed in the step that encodes the source, and kept in the
block of the group's table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from thalweg.hal import ops
from thalweg.hal.parts.each_token import EachToken
from thalweg.hal.parts.sources import Sources
from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow, MixerRef, SourceVectors
from thalweg.models.layers.linear import Linear, RowLinear


class CrossAttention:
    """x [T, hidden] -> [T, hidden]."""

    backend = None
    """None: ops read and write its cache, so no attention backend plans for it."""

    def __init__(self, ctx: Context, spec: declared.CrossAttention, weights: Mapping[str, Any], place: MixerRef) -> None:
        self._place, self._head_dim, self._sources = place, spec.head_dim, spec.sources
        heads = ctx.share(spec.heads, "heads of cross attention")
        self.spec = spec.keeps(ctx.dtype, ctx.kv_dtype, ctx.max_len, ctx.mesh.tensor.size)
        self.layout = self.spec.parts
        sources = replace(ctx, adapters=None)  # their rows are no tokens of a sequence
        self._q, self._k, self._v = (Linear(c, weights[name]) for c, name in ((ctx, "q"), (sources, "k"), (sources, "v")))
        self._out = RowLinear(ctx, weights["out"])
        said = {"heads": heads, "head_dim": spec.head_dim}
        self._write = ctx.bind(ops.cross_write, **said)
        scale = spec.scale or spec.head_dim**-0.5
        self._attend, self._aligned = ctx.bind(ops.cross_attention, scale=scale, **said), list(spec.aligned)
        if self._aligned:
            self._weigh = ctx.bind(ops.cross_weights, scale=scale, heads=len(self._aligned), head_dim=spec.head_dim)
        self.specs: dict[str, Any] = {
            "q": self._q.specs, "k": self._k.specs, "v": self._v.specs, "out": self._out.specs,
        }  # fmt: skip

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        table, part, sources = flow.batch.block_tables[self._place.group], flow.batch.get(Sources), flow.sources
        keys, values, *lengths = flow.caches[self._place.layer]
        if part is not None and sources is not None:
            keys, values = (
                self._write(held, self._pad(made(p[name], sources.vectors, None), sources), table, part.row)
                for held, made, name in ((keys, self._k, "k"), (values, self._v, "v"))
            )
            if lengths:
                count = torch.tensor(sources.lengths, dtype=torch.float32, device=x.device)
                lengths = [self._write(lengths[0], count[:, None, None], table, part.row)]
            flow.caches[self._place.layer] = (keys, values, *lengths)
        q = self._q(p["q"], x, flow).unflatten(-1, (-1, self._head_dim))
        each = flow.batch.get(EachToken)
        if flow.weights is not None and each is not None and self._aligned:
            row, heads = each.row, self._aligned
            flow.weights.append(self._weigh(q[row][:, heads], keys[:, heads], table, flow.batch.token_seq[row]))
        return self._out(p["out"], self._attend(q, keys, values, table, flow.batch.token_seq, *lengths).flatten(-2), flow)

    def _pad(self, made: Array, sources: SourceVectors) -> Array:
        """made [M, n] of all sources' vectors -> [N, sources, n], with zeros behind the last of each."""
        if all(n == self._sources for n in sources.lengths):
            return made.unflatten(0, (len(sources.lengths), self._sources))
        out = made.new_zeros((len(sources.lengths), self._sources, made.shape[1]))
        for i, part in enumerate(made.split(sources.lengths)):
            out[i, : len(part)] = part
        return out
