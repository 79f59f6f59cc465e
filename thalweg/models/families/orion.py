"""Orion: Llama with layer norms."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag
from thalweg.models.families.common import attention, decoder, eps, hidden_size, layer_count, mlp
from thalweg.models.spec import Layer, LayerNorm, ModelSpec, Norms


def orion(config: Config) -> ModelSpec:
    bias, hidden, e = flag(config, "attention_bias", False), hidden_size(config), eps(config, default=1e-5)
    norms = Norms(mixer=LayerNorm("input_layernorm", hidden, e), ffn=LayerNorm("post_attention_layernorm", hidden, e))
    layer = Layer(attention(config, bias=bias, out_bias=bias), mlp(config), norms)
    return decoder(config, [layer] * layer_count(config), norm=LayerNorm("norm", hidden, e))
