"""OLMo 1: Llama with layer norms without weights and biases."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag
from thalweg.models.families.common import attention, clip, decoder, hidden_size, layer_count, mlp
from thalweg.models.spec import Layer, LayerNorm, ModelSpec, Norms


def olmo(config: Config) -> ModelSpec:
    hidden, bias = hidden_size(config), flag(config, "attention_bias", False)
    norms = Norms(mixer=_norm("input_layernorm", hidden), ffn=_norm("post_attention_layernorm", hidden))
    layer = Layer(attention(config, clip=clip(config), bias=bias, out_bias=bias), mlp(config), norms)
    return decoder(config, [layer] * layer_count(config), norm=_norm("norm", hidden))


def _norm(name: str, hidden: int) -> LayerNorm:
    return LayerNorm(name, hidden, 1e-5, bias=False, weight=False)
