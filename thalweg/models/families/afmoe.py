"""AFMoE (Trinity): pre- and post-norms, gated attention, sliding windows with RoPE on three of four layers and NoPE on the
fourth, sigmoid router with expert bias."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.models.families.common import (
    attention,
    decoder,
    eps,
    hidden_size,
    layer_count,
    layer_types,
    mlp,
    rope,
    sliding_window,
)
from thalweg.models.families.mixtures import sigmoid_mixture
from thalweg.models.spec import HeadNorm, Layer, ModelSpec, Norm, Norms


def afmoe(config: Config) -> ModelSpec:
    config = {"sliding_window": 1024, "num_shared_experts": 2, **config, "rms_norm_eps": eps(config, default=1e-5)}
    hidden, e, bias = hidden_size(config), eps(config), flag(config, "attention_bias", False)
    head_dim = integer(config, "head_dim", default=128)
    local = attention(
        config, head_dim=head_dim, rope=rope(config, head_dim), window=sliding_window(config), norm=HeadNorm(e), bias=bias,
        out_bias=bias, gate="gate_proj",
    )  # fmt: skip
    kinds = {"sliding_attention": local, "full_attention": replace(local, rope=None, window=0)}
    norms = Norms(
        mixer=Norm("input_layernorm", hidden, e), mixer_out=Norm("post_attention_layernorm", hidden, e),
        ffn=Norm("pre_mlp_layernorm", hidden, e), ffn_out=Norm("post_mlp_layernorm", hidden, e),
    )  # fmt: skip
    moe = sigmoid_mixture(
        {**config, "norm_topk_prob": True}, experts="num_experts", shared="num_shared_experts", scale="route_scale", most=64,
        top=6, correction="expert_bias", router="router.gate",
    )  # fmt: skip
    every, dense = (
        integer(config, "global_attn_every_n_layers", default=4),
        integer(config, "num_dense_layers", default=1),
    )
    absent = ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(layer_count(config))]
    return decoder(
        config, [
            Layer(kinds[kind], mlp(config) if i < dense else moe, norms)
            for i, kind in enumerate(layer_types(config, absent))
        ],
        embed_scale=hidden**0.5 if flag(config, "mup_enabled", False) else 1.0,
    )  # fmt: skip
