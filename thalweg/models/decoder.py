"""The decoder the Llama-like families share: norm, attention, norm, gated MLP, with a residual stream around them.

A family (llama.py, qwen3.py, ...) is a function from its configuration to `settings.Settings`; nothing else differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from thalweg.hal.attention import AttentionBackend, AttnSpec
from thalweg.hal.kv import KVLayout
from thalweg.hal.step import Array, StepBatch
from thalweg.models.context import Context
from thalweg.models.layers.attention import Attention
from thalweg.models.layers.embedding import Embedding, LMHead
from thalweg.models.layers.mlp import GatedMLP
from thalweg.models.layers.norm import AddRMSNorm
from thalweg.models.layers.rotary import cos_sin_table
from thalweg.models.settings import Settings, kv_groups
from thalweg.models.spec import ParamSpec


class Block:
    """One layer. x [T, hidden] and the residual stream in; the same out."""

    def __init__(self, ctx: Context, name: str, s: Settings, window: int) -> None:
        self._norm = AddRMSNorm(ctx, f"{name}.input_layernorm", s.hidden, s.eps)
        self.attention = Attention(ctx, f"{name}.self_attn", s.hidden, s.attention, window)
        self._mlp_norm = AddRMSNorm(ctx, f"{name}.post_attention_layernorm", s.hidden, s.eps)
        self._mlp = GatedMLP(ctx, f"{name}.mlp", s.hidden, s.inner, s.act, s.mlp_bias)
        self.specs = {
            "norm": self._norm.specs,
            "attention": self.attention.specs,
            "mlp_norm": self._mlp_norm.specs,
            "mlp": self._mlp.specs,
        }

    def __call__(
        self, p: Mapping[str, Any], x: Array, residual: Array | None, kv: Array, batch: StepBatch, group: int, cos_sin: Array
    ) -> tuple[Array, Array, Array]:
        x, residual = self._norm(p["norm"], x, residual)
        x, kv = self.attention(p["attention"], x, kv, batch, group, cos_sin)
        x, residual = self._mlp_norm(p["mlp_norm"], x, residual)
        return self._mlp(p["mlp"], x), residual, kv


class Decoder:
    """A model: what `build` returns. Holds no tensors; parameters and caches are passed."""

    def __init__(self, ctx: Context, s: Settings) -> None:
        self.vocab, self.hidden, self.comm, self.tied = s.vocab, s.hidden, ctx.comm, s.tied
        self.max_len = ctx.max_len
        windows = s.windows_within(ctx.max_len)
        self._embed = Embedding(ctx, "model.embed_tokens", s.vocab, s.hidden, s.tied)
        self._blocks = [Block(ctx, f"model.layers.{i}", s, w) for i, w in enumerate(windows)]
        self._norm = AddRMSNorm(ctx, "model.norm", s.hidden, s.eps)
        self._head = LMHead(ctx, "model.embed_tokens" if s.tied else "lm_head", s.vocab, s.hidden)
        table = partial(cos_sin_table, dict(s.rope), s.attention.head_dim, s.trained, ctx.max_len)
        self.specs: dict[str, Any] = {
            "rope": ParamSpec((), "float32", make=table),
            "embed": self._embed.specs,
            "layers": {i: b.specs for i, b in enumerate(self._blocks)},
            "norm": self._norm.specs,
            "head": self._head.specs,
        }
        self.layouts: tuple[KVLayout, ...] = tuple(b.attention.layout for b in self._blocks)
        """Per layer."""
        self.groups = kv_groups(windows, ctx.block_tokens, [layout.bytes_per_block for layout in self.layouts])
        """Layers that keep the same tokens share a group."""
        self.layer_group = tuple(next(g for g, k in enumerate(self.groups) if i in k.layers) for i in range(len(windows)))
        """Per layer: its index in `groups`."""
        first = [self._blocks[g.layers[0]].attention for g in self.groups]
        self.attention: tuple[tuple[AttentionBackend, AttnSpec], ...] = tuple((a.backend, a.spec) for a in first)
        """Per group: the backend whose `plan` fills StepBatch.plans, and the spec it plans for, that of all its layers."""

    def rename(self, name: str) -> str | None:
        """A checkpoint's tensor name as the layers know it; None for tensors that hold nothing of their own: rotary
        tables, and the output matrix of a model whose embedding serves as one. Bare decoders lack the `model.` prefix."""
        if name.endswith("rotary_emb.inv_freq") or (self.tied and name == "lm_head.weight"):
            return None
        return name if name.startswith(("model.", "lm_head.")) else f"model.{name}"

    def forward(self, params: Any, batch: StepBatch, kv: list[Array]) -> tuple[Array, list[Array]]:
        """The hidden states [T, hidden] after the final norm, and the new caches, one per layer. Token ids are known:
        batch.tokens holds no ON_DEVICE."""
        x, residual, new = self._embed(params["embed"], batch.tokens), None, list(kv)
        for i, block in enumerate(self._blocks):
            p = params["layers"][i]
            x, residual, new[i] = block(p, x, residual, kv[i], batch, self.layer_group[i], params["rope"])
        x, _ = self._norm(params["norm"], x, residual)
        return x, new

    def logits(self, params: Any, x: Array) -> Array:
        """x [N, hidden] of `forward` -> f32[N, vocab]."""
        return self._head(params["head"], x)

    @property
    def chooses(self) -> bool:
        """Can the output matrix say which token is likeliest without giving logits?"""
        return self._head.chooses

    def largest(self, params: Any, x: Array) -> tuple[Array, Array]:
        """x [N, hidden] of `forward` -> (the likeliest tokens i32[N], their logits f32[N]): what `logits` would give, but
        faster. Only where the model `chooses`."""
        return self._head.largest(params["head"], x)
