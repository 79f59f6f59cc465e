"""Nemotron 3 and 4, and Minitron: (1 + w) layer norms, ungated squared-ReLU MLPs, half-rotary RoPE."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, real
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
from thalweg.models.spec import Layer, LayerNorm, ModelSpec, Norms


def nemotron(config: Config) -> ModelSpec:
    config = {"partial_rotary_factor": 0.5, **config}
    hidden, e, bias = hidden_size(config), real(config, "norm_eps", default=1e-5), flag(config, "attention_bias", False)
    head_dim = head_size(config)
    layer = Layer(
        attention(config, head_dim=head_dim, rope=rope(config, head_dim, partial=True), bias=bias, out_bias=bias),
        ungated_mlp(
            config, act=act(config, default="relu2", known=UNGATED), bias=flag(config, "mlp_bias", False), up="up_proj",
            down="down_proj",
        ),
        Norms(
            mixer=LayerNorm("input_layernorm", hidden, e, offset=1.0),
            ffn=LayerNorm("post_attention_layernorm", hidden, e, offset=1.0),
        ),
    )  # fmt: skip
    return decoder(config, [layer] * layer_count(config), norm=LayerNorm("norm", hidden, e, offset=1.0))
