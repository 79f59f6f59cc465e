"""Mellum 2: Qwen3's mixture of experts, with sliding windows and separate rotary settings on some layers."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.models.families.common import act, attention, decoder, eps, layer_count, layer_types, mlp, pre_norms, rope
from thalweg.models.families.mixtures import sparse
from thalweg.models.spec import HeadNorm, Layer, ModelSpec, MoE, Names

FULL, WINDOW = "full_attention", "sliding_attention"
ROPES = {
    FULL: {"rope_type": "default", "rope_theta": 500_000.0},
    WINDOW: {"rope_type": "default", "rope_theta": 10_000.0},
}


def mellum(config: Config) -> ModelSpec:
    config = {"head_dim": 128, "rope_parameters": ROPES, "sliding_window": 1024, **config}
    head_dim, bias = integer(config, "head_dim"), flag(config, "attention_bias", False)
    window = 0 if config["sliding_window"] is None else integer(config, "sliding_window")
    types = layer_types(config, [FULL] * layer_count(config))
    mixers = {
        kind: attention(
            config, head_dim=head_dim, rope=rope(config, head_dim, kind=kind), window=window if kind == WINDOW else 0,
            bias=bias, out_bias=bias, norm=HeadNorm(eps(config)),
        )
        for kind in dict.fromkeys(types)
    }  # fmt: skip
    experts = integer(config, "num_experts", default=integer(config, "num_local_experts", default=64))
    moe = MoE(
        experts=experts, top_k=integer(config, "num_experts_per_tok", high=experts, default=min(8, experts)),
        inner=integer(config, "moe_intermediate_size", default=896), act=act(config),
        renormalise=flag(config, "norm_topk_prob", True),
    )  # fmt: skip
    norms, plain = pre_norms(config), mlp(config)
    layers = [Layer(mixers[k], moe if mixed else plain, norms) for k, mixed in zip(types, sparse(config, 0), strict=True)]
    return decoder(config, layers, names=Names(skip=("mtp.", "model.mtp.")))
