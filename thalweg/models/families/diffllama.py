"""DiffLlama: Llama with differential attention."""

from __future__ import annotations

import math
from dataclasses import fields

from thalweg.checkpoint.config import Config, flag
from thalweg.models.families.common import attention, decoder, eps, layer_count, mlp, pre_norms
from thalweg.models.spec import Attention, DifferentialAttention, Layer, ModelSpec


def diffllama(config: Config) -> ModelSpec:
    config, bias = {**config, "rms_norm_eps": eps(config, default=1e-5)}, flag(config, "attention_bias", False)
    heads = attention(config, bias=bias, out_bias=bias)
    section = {field.name: getattr(heads, field.name) for field in fields(Attention)}
    inner, norms = mlp(config), pre_norms(config)
    starts = [0.8 - 0.6 * math.exp(-0.3 * i) for i in range(layer_count(config))]
    mixers = [DifferentialAttention(**section, start=start, eps=eps(config)) for start in starts]
    return decoder(config, [Layer(mixer, inner, norms) for mixer in mixers])
