"""Command R, Command R+, Command R7B and Aya: parallel attention and MLP, layer norms without bias, interleaved RoPE, scaled
logits. In the second generation, layers with full attention are NoPE."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.models.families.common import (
    attention,
    decoder,
    head_size,
    hidden_size,
    layer_count,
    layer_types,
    mlp,
    rope,
    sliding_window,
)
from thalweg.models.spec import Attention, HeadNorm, Layer, LayerNorm, ModelSpec, Norms


def cohere(config: Config) -> ModelSpec:
    config = {"rope_theta": 500_000.0, **config}
    return _model(config, [heads(config)] * layer_count(config))


def cohere2(config: Config) -> ModelSpec:
    every = integer(config, "sliding_window_pattern", default=4)
    absent = ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(layer_count(config))]
    each, window = heads(config), sliding_window(config)
    kinds = {
        "sliding_attention": replace(each, window=window) if window else replace(each, rope=None),
        "full_attention": replace(each, rope=None),
    }
    return _model(config, [kinds[kind] for kind in layer_types(config, absent)])


def heads(config: Config) -> Attention:
    bias, head_dim = flag(config, "attention_bias", False), head_size(config)
    norm = None
    if flag(config, "use_qk_norm", False):  # Command R+
        norm = HeadNorm(real(config, "layer_norm_eps", default=1e-5), mean=True)
    return attention(
        config, head_dim=head_dim, rope=rope(config, head_dim, interleaved=True), bias=bias, out_bias=bias, norm=norm
    )


def _model(config: Config, heads: list[Attention]) -> ModelSpec:
    hidden, e = hidden_size(config), real(config, "layer_norm_eps", default=1e-5)
    norms, inner = Norms(mixer=LayerNorm("input_layernorm", hidden, e, bias=False)), mlp(config)
    return decoder(
        config, [Layer(each, inner, norms, parallel=True) for each in heads], norm=LayerNorm("norm", hidden, e, bias=False),
        tied=flag(config, "tie_word_embeddings", True), logit_scale=real(config, "logit_scale", 1e-6, 1e6, default=0.0625),
    )  # fmt: skip
