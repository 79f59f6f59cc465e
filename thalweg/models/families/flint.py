"""Flint: QK-norm and attention sinks, sliding windows with RoPE on most layers and NoPE on the others, sigmoid routers, a
shared expert."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.models.families.common import act, attention, decoder, eps, layer_count, layer_types, mlp, pre_norms
from thalweg.models.families.qwen3 import dense_layers
from thalweg.models.spec import HeadNorm, Layer, ModelSpec, MoE, Names


def flint(config: Config) -> ModelSpec:
    config = {"head_dim": 128, "num_key_value_heads": 4, "sliding_window": 513, "mlp_only_layers": [0, 1], **config}
    experts, count = integer(config, "num_experts", default=256), layer_count(config)
    moe = MoE(
        experts=experts, top_k=integer(config, "num_experts_per_tok", high=experts, default=min(6, experts)),
        inner=integer(config, "moe_intermediate_size", default=512), act=act(config), scores="sigmoid",
        renormalise=flag(config, "norm_topk_prob", True),
        shared=mlp(
            config, inner=integer(config, "shared_expert_intermediate_size", default=1024), name="shared_expert"
        ),
    )  # fmt: skip
    bias = flag(config, "attention_bias", False)
    local = attention(
        config, window=integer(config, "sliding_window"), norm=HeadNorm(eps(config)), sinks="sinks", bias=bias, out_bias=bias
    )
    mixers = {"sliding_attention": local, "full_attention": replace(local, window=0, rope=None)}
    absent = ["full_attention" if i < 2 or i % 4 == 1 or i == count - 1 else "sliding_attention" for i in range(count)]
    norms, plain, dense = pre_norms(config), mlp(config), dense_layers(config)
    layers = [Layer(mixers[kind], plain if i in dense else moe, norms) for i, kind in enumerate(layer_types(config, absent))]
    return decoder(config, layers, names=Names(inside=((".softmax_offset", ".sinks"),)))
