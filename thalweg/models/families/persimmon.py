"""Persimmon: layer norms, QK-norm with a bias, fused q, k and v per head, half-rotary RoPE, squared ReLU."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.models.families.common import (
    UNGATED,
    act,
    attention,
    decoder,
    head_size,
    hidden_size,
    layer_count,
    rope,
    ungated_mlp,
)
from thalweg.models.spec import HeadNorm, Layer, LayerNorm, ModelSpec, Norms


def persimmon(config: Config) -> ModelSpec:
    config = {"partial_rotary_factor": 0.5, **config, "num_key_value_heads": integer(config, "num_attention_heads")}
    hidden, e, head_dim = hidden_size(config), real(config, "layer_norm_eps", default=1e-5), head_size(config)
    norm = HeadNorm(e, q="q_layernorm", k="k_layernorm", mean=True, shared=True)
    layer = Layer(
        attention(
            config, head_dim=head_dim, rope=rope(config, head_dim, partial=True), bias=True, out_bias=True,
            fused="query_key_value", grouped=True, out="dense", norm=norm if flag(config, "qk_layernorm", True) else None,
        ),
        ungated_mlp(
            config, act=act(config, default="relu2", known=UNGATED), bias=True, up="dense_h_to_4h", down="dense_4h_to_h"
        ),
        Norms(mixer=LayerNorm("input_layernorm", hidden, e), ffn=LayerNorm("post_attention_layernorm", hidden, e)),
    )  # fmt: skip
    return decoder(config, [layer] * layer_count(config), norm=LayerNorm("final_layernorm", hidden, e))
