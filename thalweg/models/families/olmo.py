"""OLMo 1: Llama with layer norms without weights and biases."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import attention, decoder, hidden_size, layer_count, mlp
from thalweg.models.spec import Layer, LayerNorm, ModelSpec, Norms


def olmo(config: Config) -> ModelSpec:
    if config.get("clip_qkv") is not None:
        raise UnsupportedModelError("config.json: clip_qkv: this version does not clip q, k and v; it must be null")
    hidden, bias = hidden_size(config), flag(config, "attention_bias", False)
    norms = Norms(mixer=_norm("input_layernorm", hidden), ffn=_norm("post_attention_layernorm", hidden))
    layer = Layer(attention(config, bias=bias, out_bias=bias), mlp(config), norms)
    return decoder(config, [layer] * layer_count(config), norm=_norm("norm", hidden))


def _norm(name: str, hidden: int) -> LayerNorm:
    return LayerNorm(name, hidden, 1e-5, bias=False, weight=False)
