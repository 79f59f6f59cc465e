"""LFM3, and LFM3-VL: LFM2 with windows on some attention layers, a norm after each part, a sigmoid gate per head."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.models.families.common import (
    attention,
    decoder,
    head_size,
    hidden_size,
    layer_count,
    layer_types,
    mlp,
    rope,
)
from thalweg.models.families.mamba import taps
from thalweg.models.families.multimodal import seeing
from thalweg.models.families.towers.lfm3 import NAMES
from thalweg.models.families.towers.lfm3 import lfm3_vl as tower
from thalweg.models.spec import Attention, HeadNorm, Layer, ModelSpec, Names, Norm, Norms, ShortConv

ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
}


def lfm3_vl(config: Config) -> ModelSpec:
    spec = lfm3(config)
    return seeing(spec, config, tower, inside=(*spec.names.inside, *NAMES))


def lfm3(config: Config) -> ModelSpec:
    if not (config.get("rope_parameters") or config.get("rope_scaling")):
        config = {**config, "rope_parameters": ROPES}
    hidden, e, dim = hidden_size(config), real(config, "norm_eps", default=1e-5), head_size(config)
    window, bias = integer(config, "sliding_window", default=256), flag(config, "attention_bias", False)
    heads: dict[str, Any] = {
        "norm": HeadNorm(e), "bias": bias, "out_bias": bias, "head_dim": dim,
        "gate": "gate_proj" if flag(config, "use_attention_gate", True) else "",
        "gate_heads": flag(config, "use_attention_gate", True),
    }  # fmt: skip
    count = layer_count(config)
    absent = ["full_attention" if i % 4 == 2 else "sliding_attention" if i % 4 == 0 and i > 0 else "conv" for i in range(count)]
    types = layer_types(config, absent, known=("conv", "full_attention", "sliding_attention"))
    mixers: dict[str, Attention | ShortConv] = {
        "conv": ShortConv(inner=hidden, kernel=taps(config, "conv_L_cache", 7), bias=flag(config, "conv_bias", False))
    }
    for kind in {*types} - {"conv"}:
        turned = rope(config, dim, kind=kind)
        mixers[kind] = attention(config, rope=turned, window=window if kind == "sliding_attention" else 0, **heads)
    after: dict[str, Any] = {}
    if flag(config, "use_sandwich_norm", True):
        after = {"mixer_out": Norm("post_operator_norm", hidden, e), "ffn_out": Norm("post_ffn_norm", hidden, e)}
    norms = Norms(mixer=Norm("operator_norm", hidden, e), ffn=Norm("ffn_norm", hidden, e), **after)
    inner = mlp(config, act="silu", name="feed_forward", gate="w1", up="w3", down="w2")
    return decoder(
        config, [Layer(mixers[kind], inner, norms) for kind in types], norm=Norm("embedding_norm", hidden, e),
        tied=flag(config, "tie_word_embeddings", True), names=Names(inside=((".self_attn.g_proj.", ".self_attn.gate_proj."),)),
    )  # fmt: skip
