"""The indexer of sparse attention over pools of tokens (GLM-5 Next): see `spec.pooled_index`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from thalweg.hal import ops
from thalweg.hal.attention import AttnSpec
from thalweg.hal.parts.sparse import Sparse
from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow, MixerRef
from thalweg.models.layers.compressed import ClosedWindows, Entries
from thalweg.models.layers.linear import Linear, Product
from thalweg.models.layers.norm import build_norm
from thalweg.models.weights import ParamSpec


class IndexPooling:
    """x [T, hidden] -> `flow.entries`."""

    backend = None

    def __init__(self, ctx: Context, spec: declared.IndexPooling, weights: Mapping[str, Any], place: MixerRef) -> None:
        self._place, self._rate = place, spec.rate
        self.spec = spec.keeps(ctx.dtype, ctx.kv_dtype, ctx.max_len, ctx.mesh.tensor.size)
        (self.layout,) = self.spec.parts(ctx.block_tokens)
        self._k, self._gate = Linear(ctx, weights["k"]), Product(ctx, weights["gate"]["weight"])
        self._norm = build_norm(ctx, spec.norm, weights["norm"])
        self._write = ctx.bind(ops.index_write, size=2 * spec.dim)
        self._pool = ctx.bind(ops.pool_windows, overlaps=False, rate=spec.rate)
        self.specs: dict[str, Any] = {
            "k": self._k.specs, "gate": {"weight": self._gate.spec}, "norm": self._norm.specs,
            "bias": {"weight": ParamSpec(weights["bias"]["weight"], "float32")},
        }  # fmt: skip

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> None:
        batch, at = flow.batch, self._place
        table = batch.block_tables[at.group]
        key = self._norm(p["norm"], self._k(p["k"], x, flow))
        rows = torch.cat([key, self._gate(x, p["gate"]["weight"], None)], -1)
        pages = self._write(flow.caches[at.layer], rows, table, batch.token_seq, batch.positions, batch.slots)
        flow.caches[at.layer] = pages
        windows = ClosedWindows.of(flow, self._rate)
        seq = torch.where(windows.ends < 0, 0, windows.seq)
        flow.entries = Entries(windows, (self._pool(pages, table, seq, windows.ends, p["bias"]["weight"]),))


class PooledIndexer:
    """Selects the tokens to read for tokens that see more than `top`."""

    def __init__(self, ctx: Context, spec: declared.PooledIndexer, weights: Mapping[str, Any], attn: AttnSpec) -> None:
        """attn: the layer's cache spec."""
        self._heads, self._dim, self._rate = spec.heads, spec.dim, spec.rate
        self._q, self._down = Linear(ctx, weights["q"]), Linear(ctx, weights["down"])
        if attn.top:  # else its weights are read, and nothing is computed with them
            self._top = ctx.bind(ops.index_top, top=attn.top // spec.rate, heads=spec.heads, size=spec.dim)
        self.specs: dict[str, Any] = {"q": self._q.specs, "down": self._down.specs}

    def __call__(self, p: Mapping[str, Any], x: Array, latent: Array, flow: Flow) -> None:
        """x [T, hidden], latent [T, q_latent]. The indices go to `flow.chosen`."""
        sparse, batch = flow.batch.get(Sparse), flow.batch
        q, weights = self._q(p["q"], latent, flow), self._down(p["down"], x, flow)
        if sparse is None:
            return
        assert flow.entries is not None
        row, (held,) = sparse.row.long(), flow.entries.values
        seen, seq = batch.positions[row] + 1, batch.token_seq[row]
        closed = torch.div(seen, self._rate, rounding_mode="floor").to(torch.int32)
        by = weights[row].float() * (self._heads * self._dim) ** -0.5
        q = q[row].unflatten(-1, (self._heads, self._dim))
        best = self._top(q, by, held, batch.block_tables[flow.entries.group], seq, closed - 1)
        inside = torch.arange(self._rate, dtype=torch.int32, device=x.device)
        pooled = torch.where(best[..., None] < 0, -1, best[..., None] * self._rate + inside).flatten(1)
        last = closed[:, None] * self._rate + inside[:-1]
        flow.chosen = torch.cat([pooled, torch.where(last < seen[:, None], last, -1)], 1)
