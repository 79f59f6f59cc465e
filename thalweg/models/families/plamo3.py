"""PLaMo 3: QK-norm, norms before and after each part with offsets of their weights, windows on most layers."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real, text
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import attention, decoder, eps, hidden_size, layer_count, layer_types, mlp, rope
from thalweg.models.spec import HeadNorm, Layer, ModelSpec, Norm, Norms

OFFSETS = {"pre_mixer_norm": 1.0, "post_mixer_norm": 1 / 5, "pre_mlp_norm": 1.0, "post_mlp_norm": 5**-1.5}
"""Norms of a layer, in the order of `Norms`."""
FULL, SLIDING = "full_attention", "sliding_attention"


def plamo3(config: Config) -> ModelSpec:
    if flag(config, "scale_embedding", False):
        raise UnsupportedModelError("config.json: scale_embedding: scaled embeddings of PLaMo 3 are not implemented")
    if (act := text(config, "hidden_activation", "swiglu")) != "swiglu":
        raise UnsupportedModelError(f"config.json: hidden_activation: unknown {act!r:.80}; supported: swiglu")
    turned, size, e = _by_kind(config), integer(config, "head_dim", default=128), eps(config)
    every, bias = integer(config, "sliding_window_pattern", default=8), flag(config, "attention_bias", False)
    kinds = layer_types(config, [SLIDING if (i + 1) % every else FULL for i in range(layer_count(config))])
    norms = Norms(*(Norm(name, hidden_size(config), e, offset=offset) for name, offset in OFFSETS.items()))
    inner = mlp(config, act="silu", fused="gate_up_proj")
    layers = {
        kind: Layer(
            attention(
                config, head_dim=size, rope=rope(turned, size, kind=kind), window=_window(config) if kind == SLIDING else 0,
                norm=HeadNorm(e, offset=1.0), bias=bias, out_bias=bias, name="mixer", fused="qkv_proj",
            ),
            inner, norms,
        )
        for kind in dict.fromkeys(kinds)
    }  # fmt: skip
    return decoder(
        config, [layers[kind] for kind in kinds], norm=Norm("norm", hidden_size(config), e, offset=1.0),
        layer="layers.layers.{}.", tied=flag(config, "tie_word_embeddings", True),
    )  # fmt: skip


def _by_kind(config: Config) -> Config:
    """With `rope_parameters` by layer type, which files of transformers 5 have."""
    section = config.get("rope_parameters")
    if isinstance(section, dict) and FULL in section:
        return config
    theta, factor = real(config, "rope_theta", 1, 1e12, default=1e6), real(config, "rope_scaling_factor", 1, 1e4, default=1.0)
    full: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    if factor != 1:
        original = integer(config, "initial_context_length", high=1 << 24)
        full |= {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original, "truncate": False,
                 "beta_fast": 32.0, "beta_slow": 1.0}  # fmt: skip
    local = {"rope_type": "default", "rope_theta": real(config, "rope_local_theta", 1, 1e12, default=1e4)}
    return {**config, "rope_scaling": None, "rope_parameters": {FULL: full, SLIDING: local}}


def _window(config: Config) -> int:
    """`window_size`, or the older `sliding_window`, which may be a list with null for layers without one."""
    old = config.get("sliding_window")
    found = {n for n in old if n is not None} if isinstance(old, list) else {old} - {None}
    if len(found) > 1:
        raise UnsupportedModelError("config.json: sliding_window: layers with windows of different lengths are not supported")
    return integer(config, "window_size", default=integer({"sliding_window": next(iter(found), 2048)}, "sliding_window"))
