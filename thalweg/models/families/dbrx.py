"""DBRX: Llama's attention with clipped q, k and v, layer norms without biases, and a mixture of experts on every layer."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.config import Config, integer, real, section, text
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import ACTIVATIONS, attention, clip, decoder, hidden_size, layer_count
from thalweg.models.spec import Layer, LayerNorm, ModelSpec, MoE, Norms


def dbrx(config: Config) -> ModelSpec:
    settings, where = _part(config, "attn_config"), "config.json: attn_config"
    config = {**config, "num_key_value_heads": integer(settings, "kv_n_heads", default=1, where=where)}
    if "rope_theta" in settings:  # published files have it there only
        theta = real(settings, "rope_theta", 1, 1e12, where=where)
        config["rope_parameters"] = {"rope_type": "default", **section(config, "rope_parameters"), "rope_theta": theta}
    heads = attention(
        config, parts=("Wqkv.q", "Wqkv.k", "Wqkv.v"), fused="Wqkv", name="norm_attn_norm.attn", out="out_proj",
        clip=clip(settings, where),
    )  # fmt: skip
    norms = Norms(mixer=_norm(config, "norm_attn_norm.norm_1"), ffn=_norm(config, "norm_attn_norm.norm_2"))
    return decoder(
        config, [Layer(heads, _mixture(config), norms)] * layer_count(config), norm=_norm(config, "norm_f"),
        root="transformer.", layer="blocks.{}.", embed="wte",
    )  # fmt: skip


def _mixture(config: Config) -> MoE:
    settings, where = _part(config, "ffn_config"), "config.json: ffn_config"
    power = settings.get("moe_normalize_expert_weights", 1.0)
    if power is not None and power != 1:
        raise UnsupportedModelError(f"{where}: moe_normalize_expert_weights: must be 1 or null, not {power!r:.80}")
    experts, act = integer(settings, "moe_num_experts", high=1 << 12, default=4, where=where), settings.get("ffn_act_fn")
    name = text(act, "name", "silu") if isinstance(act, dict) else "silu"
    if name not in ACTIVATIONS:
        raise UnsupportedModelError(f"{where}: ffn_act_fn: unknown {name!r:.80}; supported: {', '.join(ACTIVATIONS)}")
    return MoE(
        experts=experts, top_k=integer(settings, "moe_top_k", high=experts, default=1, where=where), name="ffn",
        inner=integer(settings, "ffn_hidden_size", default=3584, where=where), act=ACTIVATIONS[name], router="router.layer",
        renormalise=power is not None, fused=tuple(f"experts.mlp.{part}" for part in ("w1", "v1", "w2")), stacked=True,
    )  # fmt: skip


def _part(config: Config, key: str) -> dict[str, Any]:
    found = config.get(key) or {}
    if not isinstance(found, dict):
        raise CheckpointError(f"config.json: {key}: must be an object")
    return found


def _norm(config: Config, name: str) -> LayerNorm:
    return LayerNorm(name, hidden_size(config), 1e-5, bias=False)
