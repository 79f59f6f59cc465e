"""OLMo 2 and 3: post-norm layers, QK-norm over all heads at once. OLMo 3 has a window and unscaled positions on three of four
layers."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.config import Config, flag, real
from thalweg.models.families.common import (
    attention,
    decoder,
    eps,
    head_size,
    hidden_size,
    layer_count,
    layer_types,
    mlp,
    rope,
    sliding_window,
)
from thalweg.models.spec import HeadNorm, Layer, ModelSpec, Norm, Norms, Rope


def olmo2(config: Config) -> ModelSpec:
    config = {**config, "rms_norm_eps": eps(config, default=1e-5)}
    return decoder(config, [post_normed(config)] * layer_count(config))


def olmo3(config: Config) -> ModelSpec:
    config = {"rope_theta": 500_000.0, **config, "rms_norm_eps": eps(config, default=1e-5)}
    absent = ["full_attention" if (i + 1) % 4 == 0 else "sliding_attention" for i in range(layer_count(config))]
    types = layer_types(config, absent)
    kinds = {
        "full_attention": post_normed(config, rope=_rope(config, "full_attention")),
        "sliding_attention": post_normed(config, rope=_rope(config, "sliding_attention"), window=sliding_window(config)),
    }
    return decoder(config, [kinds[kind] for kind in types])


def post_normed(config: Config, **more: Any) -> Layer:
    hidden, e, bias = hidden_size(config), eps(config), flag(config, "attention_bias", False)
    return Layer(
        attention(config, bias=bias, out_bias=bias, norm=HeadNorm(e, whole=True), **more),
        mlp(config),
        Norms(mixer_out=Norm("post_attention_layernorm", hidden, e), ffn_out=Norm("post_feedforward_layernorm", hidden, e)),
    )


def _rope(config: Config, kind: str) -> Rope:
    """One scaling for all layers, as files had it before transformers 5, is that of those that see everything."""
    section = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if kind == "sliding_attention" and isinstance(section, dict) and not isinstance(section.get(kind), dict):
        theta = real({**config, **section}, "rope_theta")
        config = {**config, "rope_scaling": None, "rope_parameters": {"rope_theta": theta}}
    return rope(config, head_size(config), kind=kind)
