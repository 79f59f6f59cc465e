"""Multi-head latent attention (DeepSeek-AI 2024, https://arxiv.org/abs/2405.04434). The up-projection of keys is applied to q,
and that of values to attention's output. Attention therefore reads the latents themselves, and no head's keys are computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from thalweg.errors import ConfigError
from thalweg.hal import ops
from thalweg.hal.parts.sparse import Sparse
from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow, MixerRef
from thalweg.models.layers.attention import grown, select_backend
from thalweg.models.layers.indexer import Indexer, grow, growth_specs
from thalweg.models.layers.linear import Linear, RowLinear
from thalweg.models.layers.norm import RMSNorm, build_norm
from thalweg.models.layers.pooled_index import PooledIndexer
from thalweg.models.weights import ParamSpec


class LatentAttention:
    """x [T, hidden] -> [T, hidden], or only the sampled rows. Heads are divided among ranks, latents are not."""

    cuts = True

    def __init__(self, ctx: Context, spec: declared.LatentAttention, weights: Mapping[str, Any], place: MixerRef) -> None:
        self._place, self._grows, self._nope, self._rotary = place, spec.grows, spec.nope_dim, spec.rope_dim
        self._heads, self._scale = ctx.share(spec.heads, "attention heads"), spec.latent_scale
        self._parts = (spec.q_latent, spec.latent, spec.rope_dim)
        self._down, self._q = Linear(ctx, weights["down"]), Linear(ctx, weights["q"])
        self._out = RowLinear(ctx, weights["out"])
        self._gated_norm = spec.gated_norm is not None
        self._kv_norm = build_norm(ctx, spec.norm_of("", spec.latent), weights["kv_norm"])
        self._q_norm = build_norm(ctx, spec.norm_of("", spec.q_latent), weights["q_norm"]) if spec.q_latent else None
        self._rope = None
        if spec.rope is not None:
            self._rope = ctx.bind(
                ops.rope, rotary_dim=spec.rope_dim, interleaved=spec.rope.interleaved, heads=self._heads, kv_heads=1,
                head_dim=spec.rope_dim,
            )  # fmt: skip
        up = {"heads": self._heads}
        self._absorb = ctx.bind(ops.head_linear, turned=True, in_features=spec.nope_dim, out_features=spec.latent, **up)
        self._expand = ctx.bind(ops.head_linear, turned=False, in_features=spec.latent, out_features=spec.value_dim, **up)
        self.spec = spec.keeps(ctx.dtype, ctx.kv_dtype, ctx.max_len, ctx.mesh.tensor.size)
        self.backend = select_backend(ctx, self.spec)
        self.layout: Any = self.backend.layout(self.spec, ctx.block_tokens)
        self.specs: dict[str, Any] = {
            "down": self._down.specs,
            "q": self._q.specs,
            "kv_norm": self._kv_norm.specs,
            "k_up": {"weight": ParamSpec(weights["k_up"]["weight"], ctx.dtype, self._absorb.pack, matrices=self._heads)},
            "v_up": {"weight": ParamSpec(weights["v_up"]["weight"], ctx.dtype, self._expand.pack, matrices=self._heads)},
            "out": self._out.specs,
        }
        if self._q_norm is not None:
            self.specs["q_norm"] = self._q_norm.specs
        self._key_norm = _norm(ctx, spec.rope_dim, spec.eps, weights["key_norm"]) if spec.key_norm else None
        if self._key_norm is not None:
            self.specs["key_norm"] = self._key_norm.specs
        if spec.softmax_scaling:
            self.specs["grows"] = growth_specs(weights["grows"])
        self._joint = spec.q_gate
        self._gate, self._per_head = Linear(ctx, weights["gate"]) if spec.gate else None, not spec.gate_values
        if spec.gate or spec.q_gate:
            self._gated = ctx.bind(ops.sigmoid_mul, size=spec.value_dim)
        if self._gate is not None:
            self.specs["gate"] = self._gate.specs
        self._indexer, self._pooled = None, None
        if isinstance(spec.indexer, declared.PooledIndexer):
            pooled = PooledIndexer(ctx, spec.indexer, weights["indexer"], self.spec)
            self._pooled, self.specs["indexer"] = pooled if self.spec.top else None, pooled.specs
        elif spec.indexer is not None:
            indexer = Indexer(ctx, spec.indexer, weights["indexer"], spec.rope_dim, self.spec, place)
            self.specs["indexer"] = indexer.specs
            if self.spec.top:
                self._indexer, self.layout = indexer, (self.layout, indexer.layout)
        if spec.sinks:
            self.specs["sinks"] = {"weight": ParamSpec(weights["sinks"]["weight"], ctx.dtype)}
        if self.spec.top:
            self._sparse(ctx, spec)

    def _sparse(self, ctx: Context, spec: declared.LatentAttention) -> None:
        """Bind the op of sparse attention. Not called where no sequence is that long."""
        if ctx.kv_dtype not in ("", ctx.dtype):
            raise ConfigError(
                "kv_cache_dtype: this model has sparse attention (DSA), and this version only caches its keys in the model's "
                f"dtype: remove the flag, or set max_model_len to at most {spec.top}"
            )
        facts = {"scale": self.spec.scale, "heads": self._heads, "size": self.spec.head_dim}
        if spec.sinks:  # without a window, the op reads the selected keys only
            self._chosen_sinks = ctx.bind(ops.compressed_attention, window=0, **facts)
        else:
            self._chosen = ctx.bind(ops.chosen_attention, latent=spec.latent, **facts)

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        at = self._place
        # As heads, of which there is one: kernels take those out of wider rows.
        latent_q, latent, key = self._down(p["down"], x, flow).unsqueeze(1).split(self._parts, dim=-1)
        entered = x if self._q_norm is None else self._normalize(self._q_norm, p["q_norm"], latent_q).squeeze(1)
        read = torch.cat((entered, latent_q.squeeze(1)), -1) if self._joint else entered
        q, gates = self._q(p["q"], read, flow).unflatten(-1, (self._heads, -1)), None
        if self._joint:
            q, gates = q.split((self._nope + self._rotary, q.shape[-1] - self._nope - self._rotary), dim=-1)
        if self._grows is not None:
            q = grown(q, flow.batch.positions, *self._grows)
        if "grows" in p:
            q = grow(p["grows"], q, flow.batch.positions)
        still, turning = q.split((self._nope, self._rotary), dim=-1)
        if self._key_norm is not None:
            key = self._key_norm(p["key_norm"], key.contiguous())
        if self._rope is not None:
            turned = flow.batch.positions if flow.rows is None else flow.rows
            turning, key = self._rope(turning, key, turned, flow.tables[at.table])
        query = torch.cat((self._absorb(still, p["k_up"]["weight"]), turning), -1)
        latent = self._normalize(self._kv_norm, p["kv_norm"], latent)
        held = torch.cat((latent if self._scale == 1.0 else latent * self._scale, key), -1)
        cache = flow.caches[at.layer]
        sinks = p["sinks"]["weight"] if "sinks" in p else None
        if self._pooled is not None:
            self._pooled(p["indexer"], x, entered, flow)
        if self._indexer is None:
            out, cache = self.backend.attend(query, held, held, cache, flow.batch, at.group, self.spec, sinks)
            flow.caches[at.layer] = cache
        else:
            index = self._indexer(p["indexer"], x, entered, cache[1], flow)
            out, cache = self.backend.attend(query, held, held, cache[0], flow.batch, at.group, self.spec, sinks)
            flow.caches[at.layer] = (cache, index)
        sparse = flow.batch.get(Sparse) if self.spec.top else None
        if sparse is not None:
            out = self._reads(query, cache, out, sparse, sinks, flow)
        values = self._expand(flow.cut(out), p["v_up"]["weight"])
        if self._gate is not None:
            gate = flow.cut(self._gate(p["gate"], x, flow)).contiguous()
            values = self._gated(values, gate.unsqueeze(-1) if self._per_head else gate.unflatten(-1, (self._heads, -1)))
        elif gates is not None:
            values = self._gated(values, flow.cut(gates).contiguous())
        return self._out(p["out"], values.flatten(-2), flow, read=True)

    def _normalize(self, norm: Any, p: Mapping[str, Any], x: Array) -> Array:
        """Of a latent [T, 1, n]. Gates of norms are products of whole rows."""
        normed: Array = norm(p, x.squeeze(1).contiguous()).unsqueeze(1) if self._gated_norm else norm(p, x)
        return normed

    def _reads(self, query: Array, cache: Array, out: Array, sparse: Sparse, sinks: Array | None, flow: Flow) -> Array:
        """out, but for tokens that see more than they read. All attend to everything before: so a token that reads all it sees
        has the same bits in a step with and without others."""
        row, pick = sparse.row.long(), sparse.pick[:, 0]
        table, keys = flow.batch.block_tables[self._place.group], self.backend.keys(cache, self.spec)
        seq = flow.batch.token_seq[row]
        if sinks is None:
            read = self._chosen(query[row], keys, table, seq, flow.chosen)
        else:
            where = keys, table, seq, flow.batch.positions[row], sinks, keys, table
            read, _ = self._chosen_sinks(query[row], *where, flow.chosen).split(
                (self.spec.latent, keys.shape[-1] - self.spec.latent), -1
            )
        return torch.where((pick >= 0)[:, None, None], read[pick.clamp(min=0).long()], out)


def _norm(ctx: Context, size: int, eps: float, weights: Mapping[str, Any]) -> RMSNorm:
    return RMSNorm(ctx, declared.Norm("", size, eps), weights)
