"""Zaya: compressed convolutional attention (CCA), routers with layers that select one expert or none, learned scales of the
residual stream."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import act, decoder, eps, head_size, hidden_size, layer_count, layer_types, rope
from thalweg.models.spec import (
    ConvolvedAttention,
    ConvolvedHeads,
    DeepRouter,
    Layer,
    Mixer,
    ModelSpec,
    MoE,
    Norm,
    Norms,
    ResidualScaling,
    Scale,
)

FULL, WINDOW = "hybrid", "hybrid_sliding"
ROPES = {
    FULL: {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.5},
    WINDOW: {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
}


def zaya(config: Config) -> ModelSpec:
    for key, only in (("cca_time0", 2), ("cca_time1", 2), ("num_experts_per_tok", 1)):
        if integer(config, key, default=only) != only:
            raise UnsupportedModelError(f"config.json: {key}: this version only supports {only}")
    if flag(config, "attention_bias", False):
        raise UnsupportedModelError("config.json: attention_bias: this version serves this family without it")
    config = {"num_key_value_heads": 2, "head_dim": 128, **config, "rms_norm_eps": eps(config, default=1e-5)}
    section: Any = config.get("rope_parameters") or ROPES
    if isinstance(section, dict) and any(isinstance(v, dict) for v in section.values()):  # published files have a key too many
        config = {**config, "rope_parameters": {k: v for k, v in section.items() if isinstance(v, dict)}}
    hidden, e, count = hidden_size(config), eps(config), layer_count(config)
    kinds = layer_types(config, [FULL] * count, known=(FULL, WINDOW))
    mixers = {kind: _mixers(config, kind) for kind in dict.fromkeys(kinds)}
    first, second = Norm("input_layernorm", hidden, e), Norm("post_attention_layernorm", hidden, e)
    attend, feed = (ResidualScaling(size=hidden, name=f"post_{part}_residual_scale") for part in ("attention", "mlp"))
    layers = []
    for i, kind in enumerate(kinds):
        layers += [
            Layer(mixers[kind], None, Norms(mixer=first), around=attend),
            Layer(None, _experts(config, carries=i > 0), Norms(ffn=second), around=feed),
        ]
    return decoder(
        config, layers, numbers=tuple(i // 2 for i in range(2 * count)), tied=flag(config, "tie_word_embeddings", True),
        head_bias=flag(config, "lm_head_bias", False),
        embed_norm=Scale("input_hidden_states_scale", hidden, more="input_hidden_states_bias"),
    )  # fmt: skip


def _mixers(config: Config, kind: str) -> tuple[Mixer, ...]:
    heads, kv, dim = integer(config, "num_attention_heads"), integer(config, "num_key_value_heads"), head_size(config)
    if heads % kv:
        raise CheckpointError(f"config.json: num_attention_heads ({heads}) must be a multiple of num_key_value_heads ({kv})")
    sizes: dict[str, Any] = {"heads": heads, "kv_heads": kv, "head_dim": dim}
    turned = rope(config, dim, kind=kind, partial=True)
    window = integer(config, "sliding_window") if kind == WINDOW else 0
    return ConvolvedHeads(**sizes), ConvolvedAttention(**sizes, rope=turned, window=window)


def _experts(config: Config, *, carries: bool) -> MoE:
    return MoE(
        experts=integer(config, "num_experts", high=1 << 16, default=16), top_k=1, act=act(config),
        inner=integer(config, "moe_intermediate_size", default=2048), fused=("experts.gate_up_proj", "experts.down_proj"),
        deep_router=DeepRouter(size=integer(config, "router_hidden_size", default=256), eps=eps(config), carries=carries),
    )  # fmt: skip
