"""Laguna: softplus gates on attention heads, sliding windows on some layers with other head counts, sigmoid router with expert
bias, one shared expert."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.config import Config, integer, real
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import act, attention, decoder, eps, layer_count, layer_types, mlp, pre_norms, rope
from thalweg.models.families.mixtures import sparse
from thalweg.models.spec import Attention, HeadNorm, Layer, ModelSpec, MoE

FULL, WINDOW = "full_attention", "sliding_attention"
ROPES = {
    FULL: {"rope_type": "default", "rope_theta": 500_000.0, "partial_rotary_factor": 0.5},
    WINDOW: {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 1.0},
}


def laguna(config: Config) -> ModelSpec:
    for key in ("moe_apply_router_weight_on_input", "moe_router_logit_softcapping", "attention_bias"):
        if config.get(key):
            raise UnsupportedModelError(f"config.json: {key}: this version serves Laguna without it")
    config = {"head_dim": 128, "num_key_value_heads": 8, "rope_parameters": ROPES, "sliding_window": 512, **config}
    experts = integer(config, "num_experts", default=256)
    moe = MoE(
        experts=experts, top_k=integer(config, "num_experts_per_tok", high=experts, default=min(8, experts)),
        inner=integer(config, "moe_intermediate_size", default=512), act=act(config), scores="sigmoid",
        renormalise=True, correction="experts.e_score_correction_bias",
        scale=real(config, "moe_routed_scaling_factor", 1e-6, 1e6, default=1.0),
        shared=mlp(
            config, inner=integer(config, "shared_expert_intermediate_size", default=512), name="shared_expert"
        ),
    )  # fmt: skip
    heads, types = _heads(config), layer_types(config, [FULL] * layer_count(config))
    mixers = {each: _attention(config, *each) for each in dict.fromkeys(zip(types, heads, strict=True))}
    norms, plain = pre_norms(config), mlp(config)
    parts = [moe if mixed else plain for mixed in sparse(config, 1)]
    return decoder(
        config, [Layer(mixers[each], part, norms) for each, part in zip(zip(types, heads, strict=True), parts, strict=True)]
    )


def _attention(config: Config, kind: str, heads: int) -> Attention:
    head_dim, gating = integer(config, "head_dim"), config.get("gating", True)
    if gating not in (True, "per-head", "per-element"):
        raise UnsupportedModelError(f"config.json: gating: {gating!r:.40} is neither per-head nor per-element")
    return attention(
        {**config, "num_attention_heads": heads}, head_dim=head_dim, rope=rope(config, head_dim, kind=kind, partial=True),
        window=integer(config, "sliding_window") if kind == WINDOW else 0, norm=HeadNorm(eps(config)), gate="g_proj",
        softplus=True, gate_heads=gating != "per-element",
    )  # fmt: skip


def _heads(config: Config) -> list[int]:
    """Of each layer."""
    count, heads = layer_count(config), integer(config, "num_attention_heads")
    section: Any = config.get("num_attention_heads_per_layer")
    if section is None:
        return [heads] * count
    if not isinstance(section, list) or len(section) != count or not all(type(n) is int and 0 < n <= 1 << 16 for n in section):
        raise CheckpointError(f"config.json: num_attention_heads_per_layer: must be a list of {count} numbers")
    return section
