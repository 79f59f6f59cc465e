"""Attention that reads some blocks of keys. Tokens with few enough keys attend to all of them through the backend. For others
an indexer selects blocks, and an op reads those in the backend's cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from thalweg.errors import ConfigError
from thalweg.hal import ops
from thalweg.hal.attention import AttentionBackend, AttnSpec, QKPrologue
from thalweg.hal.kv import KVLayout
from thalweg.hal.parts.sparse import Sparse
from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow, KeysValues, MixerRef
from thalweg.models.layers.attention import Attention, AttentionOps
from thalweg.models.layers.linear import Linear
from thalweg.models.layers.norm import RMSNorm
from thalweg.models.weights import ParamSpec


class BlockSparseAttention(Attention):
    """x [T, hidden] -> [T, hidden], or only the sampled rows."""

    def __init__(self, ctx: Context, spec: declared.BlockSparseAttention, weights: Mapping[str, Any], place: MixerRef) -> None:
        super().__init__(ctx, spec, weights, place)
        indexer = BlockIndexer(ctx, spec, weights["indexer"], self.spec, place)
        self.specs["indexer"] = indexer.specs
        self._indexer = None
        if self.spec.top:
            if ctx.kv_dtype not in ("", ctx.dtype):
                raise ConfigError(
                    "kv_cache_dtype: this model reads blocks of keys, and this version only caches those in the model's dtype: "
                    f"remove the flag, or set max_model_len to at most {self.spec.top}"
                )
            self._indexer, self.layout = indexer, (self.layout, indexer.layout)
            self._attend = SelectedBlocks(ctx, spec, self.backend, self.spec)

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        if self._indexer is None:
            return super().__call__(p, x, flow)
        at = self._place.layer
        flow.caches[at], index = flow.caches[at]
        index = self._indexer(p["indexer"], x, index, flow)
        out = super().__call__(p, x, flow)
        flow.caches[at] = (flow.caches[at], index)
        return out


class BlockIndexer:
    """Caches a key of every token. Selects blocks for tokens that see more than they read."""

    def __init__(
        self, ctx: Context, spec: declared.BlockSparseAttention, weights: Mapping[str, Any], attn: AttnSpec, place: MixerRef
    ) -> None:
        """attn: the layer's cache spec."""
        assert spec.rope is not None
        self._place, self._dim = place, spec.index_dim
        self._q, self._k = Linear(ctx, weights["q"]), Linear(ctx, weights["k"])
        self._q_norm, self._k_norm = (
            RMSNorm(ctx, norm, weights[key]) for norm, key in zip(spec.index_norms, ("q_norm", "k_norm"), strict=True)
        )
        self._rope = ctx.bind(
            ops.rope, rotary_dim=spec.rope.dim, interleaved=spec.rope.interleaved, heads=attn.kv_heads, kv_heads=1,
            head_dim=spec.index_dim,
        )  # fmt: skip
        if attn.top:  # else its weights are read, and nothing is computed with them
            self._write = ctx.bind(ops.index_write, size=spec.index_dim)
            self._top = ctx.bind(ops.block_top, top=spec.top, size=spec.block, local=spec.local, dim=spec.index_dim)
        shape = (1, ctx.block_tokens, spec.index_dim)
        self.layout = KVLayout(shape, ctx.dtype, f"index/{ctx.dtype}/{'x'.join(map(str, shape))}")
        self.specs: dict[str, Any] = {
            "q": self._q.specs, "k": self._k.specs,
            **{key: {"weight": ParamSpec(weights[key]["weight"], ctx.dtype)} for key in ("q_norm", "k_norm")},
        }  # fmt: skip

    def __call__(self, p: Mapping[str, Any], x: Array, held: Array, flow: Flow) -> Array:
        """x [T, hidden], held: the cache of keys -> the cache. The blocks go to `flow.chosen`."""
        batch, at, sparse = flow.batch, self._place, flow.batch.get(Sparse)
        q = self._q_norm(p["q_norm"], self._q(p["q"], x, flow).unflatten(-1, (-1, self._dim)))
        key = self._k_norm(p["k_norm"], self._k(p["k"], x, flow)).unsqueeze(1)
        q, key = self._rope(q, key, batch.positions, flow.tables[at.table])
        table, pages = batch.block_tables[at.group], held.squeeze(1)
        pages = self._write(pages, key.squeeze(1), table, batch.token_seq, batch.positions, batch.slots)
        if sparse is not None:
            row = sparse.row.long()
            flow.chosen = self._top(q[row], pages, table, batch.token_seq[row], batch.positions[row])
        return pages.unsqueeze(1)


class SelectedBlocks(AttentionOps):
    """Norms, rotary positions and attention with separate ops. Rows of `Sparse` read the selected blocks only."""

    def __init__(
        self, ctx: Context, spec: declared.BlockSparseAttention | declared.PooledSparseAttention, backend: AttentionBackend,
        attn: AttnSpec,
    ) -> None:  # fmt: skip
        assert spec.rope is not None
        assert spec.norm is not None
        prologue = QKPrologue(spec.rope.dim, spec.rope.interleaved, spec.norm.eps, spec.norm.offset)
        super().__init__(ctx, backend, attn, prologue, prologue, None)
        assert self._rope is not None
        self._turn = self._rope
        self._read = ctx.bind(ops.block_attention, scale=attn.scale, size=spec.block, heads=attn.heads, dim=attn.head_dim)

    def __call__(self, p: Mapping[str, Any], q: Array, keys: KeysValues, flow: Flow, at: MixerRef) -> Array:
        batch, sparse = flow.batch, flow.batch.get(Sparse)
        q, k = self._normalize_qk(p, q, keys.k, keys.weight)
        q, k = self._turn(q, k, batch.positions if flow.rows is None else flow.rows, flow.tables[at.table])
        out, cache = self._backend.attend(q, k, keys.v, flow.caches[at.layer], batch, at.group, self._spec)
        flow.caches[at.layer] = cache
        if sparse is None:
            return out
        row, pick = sparse.row.long(), sparse.pick[:, 0]
        held, table = self._backend.pages(cache, self._spec), batch.block_tables[at.group]
        read = self._read(q[row], *held, table, batch.token_seq[row], batch.positions[row], flow.chosen)
        return torch.where((pick >= 0)[:, None, None], read[pick.clamp(min=0).long()], out)
