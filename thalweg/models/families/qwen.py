"""Qwen, the first: Llama with fused q, k and v with biases, under other names."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import attention, decoder, eps, hidden_size, layer_count, mlp
from thalweg.models.spec import Layer, ModelSpec, Norm, Norms


def qwen(config: Config) -> ModelSpec:
    """Scaled frequencies and logarithmic attention begin after `seq_length` tokens, which is the longest sequence here."""
    if not flag(config, "no_bias", True) or not flag(config, "scale_attn_weights", True):
        raise UnsupportedModelError("config.json: no_bias, scale_attn_weights: this version serves Qwen with both true")
    if real(config, "rotary_pct", 0, 1, default=1.0) != 1.0:
        raise UnsupportedModelError("config.json: rotary_pct: this family turns whole heads")
    hidden, e = hidden_size(config), eps(config)
    mixer = attention(config, name="attn", fused="c_attn", out="c_proj", bias=True)
    inner = mlp(
        config, act="silu", inner=integer(config, "intermediate_size") // 2, gate="w2", up="w1", down="c_proj"
    )  # the number of both halves
    layer = Layer(mixer, inner, Norms(mixer=Norm("ln_1", hidden, e), ffn=Norm("ln_2", hidden, e)))
    return decoder(
        config, [layer] * layer_count(config), norm=Norm("ln_f", hidden, e), root="transformer.", layer="h.{}.", embed="wte"
    )
