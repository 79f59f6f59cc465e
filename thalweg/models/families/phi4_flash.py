"""Phi-4-mini-flash (SambaY): Mamba and differential attention take turns, and layers of the second half read one scan and one
cache of the middle (Ren et al. 2025, https://arxiv.org/abs/2507.06607)."""

from __future__ import annotations

import math
from dataclasses import fields, replace

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import attention, decoder, hidden_size, layer_count, mlp
from thalweg.models.families.mamba import inner_size, step_rank, taps
from thalweg.models.spec import (
    Attention,
    DifferentialAttention,
    GatedMemory,
    Layer,
    LayerNorm,
    Mamba,
    ModelSpec,
    Norms,
)

SUBNORM_EPS = 1e-5
NAME = "attn"
"""Of every mixer."""


def phi4_flash(config: Config) -> ModelSpec:
    """Attention has no positions. The layers are those of files with `mb_per_layer` 2, half of them with a window."""
    count = layer_count(config)
    if integer(config, "mb_per_layer", default=2) != 2 or count % 4:
        raise UnsupportedModelError(
            "config.json: mb_per_layer, num_hidden_layers: Mamba in every other one of a multiple of 4 layers is supported"
        )
    middle, e = count // 2, real(config, "layer_norm_eps", default=1e-5)
    hidden, inner = hidden_size(config), mlp(config, fused="fc1", down="fc2", bias=flag(config, "mlp_bias", False))
    scan = Mamba(
        inner=inner_size(config, "mamba_expand"), state=integer(config, "mamba_d_state", default=16),
        rank=step_rank(config, "mamba_dt_rank", hidden), kernel=taps(config, "mamba_d_conv"),
        bias=flag(config, "mamba_proj_bias", False), conv_bias=flag(config, "mamba_conv_bias", True), name=NAME,
    )  # fmt: skip
    gated = GatedMemory(inner=scan.inner, bias=scan.bias, name=NAME)
    enter, leave = (LayerNorm(name, hidden, e) for name in ("input_layernorm", "post_attention_layernorm"))
    windows, layers, numbers = _windows(config), list[Layer](), list[int]()
    shared = -1  # the declared layer whose cache later ones read
    for i in range(count):
        if i % 2 == 0 and i > middle:  # its two parts follow each other
            layers += [Layer(None, gated, Norms(ffn=enter)), Layer(None, inner, Norms(ffn=leave))]
            numbers += [i, i]
            continue
        mixer = replace(scan, remembered=i == middle) if i % 2 == 0 else _attention(config, i, windows[i], shared)
        shared = len(layers) if i == middle + 1 else shared
        layers.append(Layer(mixer, inner, Norms(mixer=enter, ffn=leave)))
        numbers.append(i)
    return decoder(
        config, layers, numbers=tuple(numbers), norm=LayerNorm("final_layernorm", hidden, e),
        tied=flag(config, "tie_word_embeddings", True),
    )  # fmt: skip


def _attention(config: Config, i: int, window: int, shared: int) -> DifferentialAttention:
    """shared: the declared layer whose cache it reads; -1 = it has one."""
    heads = replace(
        attention(
            config, bias=True, out_bias=True, name=NAME, parts=("Wqkv", "k_proj", "v_proj"), out="out_proj", window=window
        ),
        rope=None, fused="" if shared >= 0 else "Wqkv", reads=shared if shared >= 0 else None,
    )  # fmt: skip
    section = {field.name: getattr(heads, field.name) for field in fields(Attention)}
    return DifferentialAttention(
        **section,
        start=0.8 - 0.6 * math.exp(-0.3 * i),
        eps=SUBNORM_EPS,
        subnorm="subln",
        inside="inner_cross_attn.",
        pairs=True,
    )


def _windows(config: Config) -> list[int]:
    """Of each layer, 0 = none: `sliding_window` for all layers with attention of the first half, or a list."""
    count, section = layer_count(config), config.get("sliding_window")
    if isinstance(section, list):
        if len(section) != count or not all(n is None or (type(n) is int and n > 0) for n in section):
            raise CheckpointError(f"config.json: sliding_window: must be a list of {count} numbers, or null for no window")
        if any(section[count // 2 + 1 :]):
            raise UnsupportedModelError(
                "config.json: sliding_window: windows of the second half of the layers are not supported"
            )
        return [n or 0 for n in section]
    window = 0 if section is None else integer(config, "sliding_window")
    return [window if i % 2 and i < count // 2 else 0 for i in range(count)]
