"""Phi-1, 1.5 and 2: parallel attention and ungated MLP, layer norms, biases everywhere, partial RoPE."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, real
from thalweg.errors import UnsupportedModelError
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


def phi(config: Config) -> ModelSpec:
    if flag(config, "qk_layernorm", False):
        raise UnsupportedModelError("config.json: qk_layernorm: this version has no norms of q and k for this family")
    config = {"partial_rotary_factor": 0.5, **config}
    hidden, e = hidden_size(config), real(config, "layer_norm_eps", default=1e-5)
    head_dim = head_size(config)
    layer = Layer(
        attention(config, head_dim=head_dim, rope=rope(config, head_dim, partial=True), bias=True, out_bias=True, out="dense"),
        ungated_mlp(config, act=act(config, default="gelu_new", known=UNGATED), bias=True),
        Norms(mixer=LayerNorm("input_layernorm", hidden, e)),
        parallel=True,
    )
    return decoder(config, [layer] * layer_count(config), norm=LayerNorm("final_layernorm", hidden, e), head_bias=True)
