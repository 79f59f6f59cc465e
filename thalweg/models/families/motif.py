"""Motif (2.6B): differential attention of neighbouring heads with a norm, and gated MLPs with PolyNorm."""

from __future__ import annotations

import math
from dataclasses import fields

from thalweg.checkpoint.config import Config, flag, integer, real, text
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import attention, decoder, layer_count, pre_norms
from thalweg.models.spec import Attention, DifferentialAttention, Layer, ModelSpec, PolyNormMLP


def motif(config: Config) -> ModelSpec:
    if config.get("num_noise_heads") is not None or flag(config, "use_sliding_window", False):
        raise UnsupportedModelError(
            "config.json: num_noise_heads, use_sliding_window: grouped differential attention and windows of Motif are not "
            "implemented"
        )
    if (act := text(config, "hidden_act", "poly_norm")) != "poly_norm":
        raise UnsupportedModelError(f"config.json: hidden_act: unknown {act!r:.80}; supported: poly_norm")
    bias, e = flag(config, "use_bias", False), real(config, "attn_rms_norm_eps", 0, 1, default=1e-5)
    heads = attention(config, bias=bias, out_bias=bias)
    section = {field.name: getattr(heads, field.name) for field in fields(Attention)}
    inner, norms = PolyNormMLP(inner=integer(config, "intermediate_size"), bias=bias), pre_norms(config)
    starts = (0.8 - 0.6 * math.exp(-0.3 * (i - 1)) for i in range(layer_count(config)))
    mixers = [DifferentialAttention(**section, start=start, eps=e, subnorm="subln", pairs=True) for start in starts]
    return decoder(config, [Layer(mixer, inner, norms) for mixer in mixers])
