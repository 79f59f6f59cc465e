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
from thalweg.models.layers.mlp import GatedMLP
from thalweg.models.layers.norm import build_norm
from thalweg.models.weights import ParamSpec


class CrossAttention:
    """x [T, hidden] -> [T, hidden]."""

    backend = None
    """None: ops read and write its cache, so no attention backend plans for it."""

    def __init__(self, ctx: Context, spec: declared.CrossAttention, weights: Mapping[str, Any], place: MixerRef) -> None:
        self._place, self._head_dim, self._sources = place, spec.head_dim, spec.sources
        ctx.share(spec.heads, "heads of cross attention")
        heads = ctx.share(spec.widths[1], "heads of keys of cross attention")
        self.spec = spec.keeps(ctx.dtype, ctx.kv_dtype, ctx.max_len, ctx.mesh.tensor.size)
        self.layout = self.spec.parts
        sources = replace(ctx, adapters=None)  # their rows are no tokens of a sequence
        self._q, self._k, self._v = (Linear(c, weights[name]) for c, name in ((ctx, "q"), (sources, "k"), (sources, "v")))
        self._out = RowLinear(ctx, weights["out"])
        shape = {"heads": heads, "head_dim": spec.head_dim}
        self._write = ctx.bind(ops.cross_write, **shape)
        scale = spec.scale or spec.head_dim**-0.5
        capped = {"softcap": spec.softcap} if spec.softcap else {}
        self._attend, self._aligned = ctx.bind(ops.cross_attention, scale=scale, **shape, **capped), list(spec.aligned)
        if self._aligned:
            self._weigh = ctx.bind(ops.cross_weights, scale=scale, heads=len(self._aligned), head_dim=spec.head_dim)
        self.specs: dict[str, Any] = {
            "q": self._q.specs, "k": self._k.specs, "v": self._v.specs, "out": self._out.specs,
        }  # fmt: skip
        norm = declared.Norm("", spec.head_dim, spec.norm)
        self._norms = {key: build_norm(ctx, norm, weights[key]) for key in ("q_norm", "k_norm") if spec.norm}
        self.specs |= {key: each.specs for key, each in self._norms.items()}
        if spec.gate:
            self.specs["gate"] = ParamSpec(weights["gate"], ctx.dtype)

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        table, part, sources = flow.batch.block_tables[self._place.group], flow.batch.get(Sources), flow.sources
        if part is not None and sources is not None:
            flow.caches[self._place.layer] = self._keep(p, flow.caches[self._place.layer], sources, table, part.row)
        keys, values, *numbers = flow.caches[self._place.layer]
        q = self._normalize("q_norm", p, self._q(p["q"], x, flow)).unflatten(-1, (-1, self._head_dim))
        each = flow.batch.get(EachToken)
        if flow.weights is not None and each is not None and self._aligned:
            row, heads = each.row, self._aligned
            flow.weights.append(self._weigh(q[row][:, heads], keys[:, heads], table, flow.batch.token_seq[row]))
        seen = self._count_seen(numbers, table, flow) if numbers else ()
        out = self._out(p["out"], self._attend(q, keys, values, table, flow.batch.token_seq, *seen).flatten(-2), flow)
        return out * torch.tanh(p["gate"]) if "gate" in p else out

    def _keep(
        self, p: Mapping[str, Any], held: tuple[Array, ...], sources: SourceVectors, table: Array, row: Array
    ) -> tuple[Array, ...]:
        """The caches with keys, values and numbers of these sources. row: as of `Sources`."""
        keys, values, *numbers = held
        if len(sources.vectors):
            some = [i for i, n in enumerate(sources.lengths) if n]
            rows = row if len(some) == len(sources.lengths) else row[some]
            k, v = self._k(p["k"], sources.vectors, None), self._v(p["v"], sources.vectors, None)
            keys = self._write(keys, self._pad(self._normalize("k_norm", p, k), sources), table, rows)
            values = self._write(values, self._pad(v, sources), table, rows)
        for i, each in enumerate((sources.lengths, sources.begins)[: len(numbers)]):
            new = torch.tensor(each, dtype=torch.float32, device=row.device)[:, None, None]
            numbers[i] = self._write(numbers[i], new, table, row)
        return keys, values, *numbers

    def _count_seen(self, numbers: list[Array], table: Array, flow: Flow) -> tuple[Array]:
        """i32[T]: vectors that each token attends to."""
        block = table[:, 0].index_select(0, flow.batch.token_seq.long()).long()
        length, *begin = (each.flatten().index_select(0, block).to(torch.int32) for each in numbers)
        if begin:
            length = length.where(flow.batch.positions >= begin[0], 0)
            flow.shown = (length > 0).unsqueeze(1)
        return (length,)

    def _normalize(self, key: str, p: Mapping[str, Any], x: Array) -> Array:
        """Each head of x [N, heads * head_dim]."""
        if key not in self._norms:
            return x
        result: Array = self._norms[key](p[key], x.reshape(-1, self._head_dim))
        return result.view(x.shape)

    def _pad(self, result: Array, sources: SourceVectors) -> Array:
        """made [M, n] of all sources' vectors -> [N, sources, n], with zeros behind the last of each, of sources with
        vectors."""
        lengths = [n for n in sources.lengths if n]
        if all(n == self._sources for n in lengths):
            return result.unflatten(0, (len(lengths), self._sources))
        out = result.new_zeros((len(lengths), self._sources, result.shape[1]))
        for i, part in enumerate(result.split(lengths)):
            out[i, : len(part)] = part
        return out


class SourceMLP:
    """x [T, hidden] -> [T, hidden]: 0 for tokens that attend to no source."""

    def __init__(self, ctx: Context, spec: declared.SourceMLP, weights: Mapping[str, Any]) -> None:
        self._mlp = GatedMLP(ctx, spec.mlp, weights["mlp"])
        self.specs = {"mlp": self._mlp.specs, "gate": ParamSpec(weights["gate"], ctx.dtype)}

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        assert flow.shown is not None
        return (self._mlp(p["mlp"], x, flow) * torch.tanh(p["gate"])).where(flow.cut(flow.shown), 0.0)
