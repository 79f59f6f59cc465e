"""The indexer of sparse attention: it selects the tokens that a token reads, where more are visible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from thalweg.hal import ops
from thalweg.hal.attention import AttnSpec
from thalweg.hal.kv import KVLayout
from thalweg.hal.parts.sparse import Sparse
from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow, MixerRef
from thalweg.models.layers.linear import Linear
from thalweg.models.layers.norm import build_norm
from thalweg.models.spec import LayerNorm
from thalweg.models.weights import ParamSpec


def growth_specs(weights: Mapping[str, Any]) -> dict[str, ParamSpec]:
    return {key: ParamSpec(weight, "float32") for key, weight in weights.items()}


def grow(p: Mapping[str, Any], q: Array, positions: Array) -> Array:
    """q [T, heads, n] times scale * log(position + 1) + bias, with both per head."""
    factor = torch.log(positions.to(torch.float32) + 1)[:, None] * p["scale"] + p["bias"]
    return q * factor.to(q.dtype)[..., None]


class Indexer:
    """Caches a key of every token. Selects the tokens to read for tokens that see more than `top`."""

    def __init__(
        self, ctx: Context, spec: declared.Indexer, weights: Mapping[str, Any], rotary: int, attn: AttnSpec, place: MixerRef
    ) -> None:
        """rotary: rotary dimensions of a head. attn: the layer's cache spec."""
        self._place, self._heads, self._dim = place, spec.heads, spec.dim
        self._still = spec.dim - rotary if spec.last else 0
        self._q, self._down = Linear(ctx, weights["q"]), Linear(ctx, weights["down"])
        self._norm = build_norm(ctx, spec.norm, weights["norm"])
        self._entry = None
        if spec.apart:
            hidden = weights["down"]["weight"].sources[0].shape[1]
            self._entry = build_norm(ctx, LayerNorm("", hidden, spec.eps), weights["entry"])
        self._rope: Any = None
        if spec.turns:
            self._rope = ctx.bind(
                ops.rope, rotary_dim=rotary, interleaved=spec.interleaved, heads=spec.heads, kv_heads=1, head_dim=spec.dim
            )
        if attn.top:  # else its weights are read, and nothing is computed with them
            self._write = ctx.bind(ops.index_write, size=spec.dim)
            self._top = ctx.bind(ops.index_top, top=attn.top, heads=spec.heads, size=spec.dim)
        shape = (1, ctx.block_tokens, spec.dim)
        self.layout = KVLayout(shape, ctx.dtype, f"index/{ctx.dtype}/{'x'.join(map(str, shape))}")
        self.specs: dict[str, Any] = {"q": self._q.specs, "down": self._down.specs, "norm": self._norm.specs}
        if self._entry is not None:
            self.specs["entry"] = self._entry.specs
        if spec.grows:
            self.specs["grows"] = growth_specs(weights["grows"])

    def __call__(self, p: Mapping[str, Any], x: Array, latent: Array, held: Array, flow: Flow) -> Array:
        """x [T, hidden], latent [T, q_latent], held: the cache of keys -> the cache. The indices go to `flow.chosen`."""
        batch, at, sparse = flow.batch, self._place, flow.batch.get(Sparse)
        key, weights = self._down(p["down"], x, flow).split((self._dim, self._heads), dim=-1)
        key = self._norm(p["norm"], key.contiguous()).unsqueeze(1)
        entered = latent if self._entry is None else self._entry(p["entry"], x)
        q = self._q(p["q"], entered, flow).unflatten(-1, (self._heads, self._dim))
        if self._still:  # in another order, the same in both, whose products are the same
            q, key = (torch.cat([each[..., self._still :], each[..., : self._still]], -1) for each in (q, key))
        if "grows" in p:
            q = grow(p["grows"], q, batch.positions)
        if self._rope is not None:
            q, key = self._rope(q, key, batch.positions if flow.rows is None else flow.rows, flow.tables[at.table])
        table, pages = batch.block_tables[at.group], held.squeeze(1)
        pages = self._write(pages, key.squeeze(1), table, batch.token_seq, batch.positions, batch.slots)
        if sparse is not None:
            row = sparse.row.long()
            by = weights[row].float() * (self._heads * self._dim) ** -0.5
            flow.chosen = self._top(q[row], by, pages, table, batch.token_seq[row], batch.positions[row])
        return pages.unsqueeze(1)
