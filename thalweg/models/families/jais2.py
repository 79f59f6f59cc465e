"""Jais 2: layer norms, biases, ungated squared-ReLU MLPs."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, real
from thalweg.models.families.common import UNGATED, act, attention, decoder, hidden_size, layer_count, ungated_mlp
from thalweg.models.spec import Layer, LayerNorm, ModelSpec, Norms


def jais2(config: Config) -> ModelSpec:
    hidden, e, bias = (
        hidden_size(config),
        real(config, "layer_norm_eps", default=1e-5),
        flag(config, "attention_bias", True),
    )
    inner = ungated_mlp(
        config, act=act(config, default="relu2", known=UNGATED), bias=flag(config, "mlp_bias", True), up="up_proj",
        down="down_proj",
    )  # fmt: skip
    norms = Norms(mixer=LayerNorm("input_layernorm", hidden, e), ffn=LayerNorm("post_attention_layernorm", hidden, e))
    layer = Layer(attention(config, bias=bias, out_bias=bias), inner, norms)
    return decoder(config, [layer] * layer_count(config), norm=LayerNorm("norm", hidden, e))
