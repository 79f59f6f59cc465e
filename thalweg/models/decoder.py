"""The decoder the Llama-like families share: norm, attention, norm, gated MLP, with a residual stream around them.

A family (llama.py, qwen3.py, ...) is a function from its configuration to `Settings`; nothing else differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, max_len, real, rope_parameters, text
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.hal.kv import KVLayout, KVSpec
from thalweg.hal.step import Array, StepBatch
from thalweg.models.context import Context
from thalweg.models.layers.attention import Attention, Heads
from thalweg.models.layers.embedding import Embedding, LMHead
from thalweg.models.layers.mlp import ACTIVATIONS, GatedMLP
from thalweg.models.layers.norm import AddRMSNorm
from thalweg.models.layers.rotary import check, cos_sin_table
from thalweg.models.spec import ParamSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything about a model that its configuration decides."""

    vocab: int
    hidden: int
    inner: int
    """Width of the MLP."""
    attention: Heads
    windows: tuple[int, ...]
    """Per layer: tokens a token sees, itself included; 0 = all before it."""
    eps: float
    act: str
    mlp_bias: bool
    tied: bool
    """The embedding is also the output matrix."""
    rope: Mapping[str, Any]
    trained: int
    """max_position_embeddings."""


def settings(config: Config, *, windows: tuple[int, ...] | None = None, mlp_bias: bool = False, **heads: Any) -> Settings:
    """What the families' configurations have in common. heads: fields of Heads that the family decides."""
    layers = integer(config, "num_hidden_layers", high=10_000)
    hidden = integer(config, "hidden_size", high=1 << 20)
    n = integer(config, "num_attention_heads", high=1 << 16)
    kv = integer(config, "num_key_value_heads", high=1 << 16, default=n)
    if n % kv:
        raise CheckpointError(f"config.json: num_attention_heads ({n}) must be a multiple of num_key_value_heads ({kv})")
    head_dim = heads.pop("head_dim", None) or integer(config, "head_dim", high=1 << 16, default=max(1, hidden // n))
    act = text(config, "hidden_act", "silu")
    if act not in ACTIVATIONS:
        raise UnsupportedModelError(f"config.json: hidden_act: {act!r:.80} is none of {', '.join(ACTIVATIONS)}")
    rope = rope_parameters(config)
    check(rope, head_dim)
    return Settings(
        vocab=integer(config, "vocab_size", high=1 << 24),
        hidden=hidden,
        inner=integer(config, "intermediate_size", high=1 << 24),
        attention=Heads(n, kv, head_dim, **heads),
        windows=windows or (0,) * layers,
        eps=real(config, "rms_norm_eps", 0, 1, default=1e-6),
        act=ACTIVATIONS[act],
        mlp_bias=mlp_bias,
        tied=flag(config, "tie_word_embeddings", False),
        rope=rope,
        trained=integer(config, "max_position_embeddings", default=max_len(config)),
    )


def sliding_window(config: Config) -> int:
    """`sliding_window` in tokens: null = 0, none; absent = 4096, what the families that have the key assume."""
    return 0 if config.get("sliding_window", 4096) is None else integer(config, "sliding_window", default=4096)


def layer_windows(config: Config) -> tuple[int, ...]:
    """Windows of the families that choose per layer: `layer_types`, or where that is absent every layer from
    `max_window_layers` on; all of it only if `use_sliding_window` says so."""
    layers = integer(config, "num_hidden_layers", high=10_000)
    used = flag(config, "use_sliding_window", False)
    window = sliding_window(config) if used else 0
    types = config.get("layer_types")
    if types is None:
        first = integer(config, "max_window_layers", low=0, default=28)
        types = ["sliding_attention" if window and i >= first else "full_attention" for i in range(layers)]
    if not isinstance(types, list) or len(types) != layers:
        raise CheckpointError(f"config.json: layer_types: must be a list of {layers} names, one per layer")
    odd = sorted({str(t) for t in types} - {"full_attention", "sliding_attention"})
    if odd:
        raise UnsupportedModelError(f"config.json: layer_types: {odd[0]!r:.80} is not supported by this version")
    return tuple(window if t == "sliding_attention" else 0 for t in types)


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
        windows = [w if w < ctx.max_len else 0 for w in s.windows]  # a window no sequence outgrows hides nothing
        self._embed = Embedding(ctx, "model.embed_tokens", s.vocab, s.hidden)
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
        kinds = list(dict.fromkeys(windows))
        self.layer_group = tuple(kinds.index(w) for w in windows)
        """Per layer: its index in `groups`."""
        self.groups = tuple(_group(self, ctx, g, w) for g, w in enumerate(kinds))
        """Layers that keep the same tokens share a group."""
        self.attention = tuple(self._blocks[g.layers[0]].attention.backend for g in self.groups)
        """Per group: the backend whose `plan` fills StepBatch.plans. One per group, as its layers' specs are equal."""

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


def _group(model: Decoder, ctx: Context, index: int, window: int) -> KVSpec:
    layers = tuple(i for i, g in enumerate(model.layer_group) if g == index)
    size = sum(model.layouts[i].bytes_per_block for i in layers)
    return KVSpec("window" if window else "full", ctx.block_tokens, size, layers, window)
