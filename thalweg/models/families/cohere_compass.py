"""Cohere Compass (North Micro Vision): Qwen3-VL's encoder and positions of three axes, Cohere's parallel layers with RoPE per
layer type. A type without settings has no positions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thalweg.checkpoint.config import BESIDE, Config, flag, real
from thalweg.errors import CheckpointError
from thalweg.models.families.common import (
    attention,
    decoder,
    head_size,
    hidden_size,
    layer_count,
    layer_types,
    mlp,
    rope,
    sliding_window,
)
from thalweg.models.families.multimodal import is_blind, read_sections, seeing
from thalweg.models.families.towers.common import outer_config
from thalweg.models.families.towers.qwen_vl import qwen3_vl as tower
from thalweg.models.spec import Attention, Layer, LayerNorm, ModelSpec, Norms

FULL, SLIDING = "full_attention", "sliding_attention"


def cohere_compass(config: Config) -> ModelSpec:
    types = layer_types(config, [FULL] * layer_count(config), known=(FULL, SLIDING))
    kinds = {kind: _heads(config, kind) for kind in sorted({*types})}
    hidden, e = hidden_size(config), real(config, "layer_norm_eps", default=1e-5)
    norms, inner = Norms(mixer=LayerNorm("input_layernorm", hidden, e, bias=False)), mlp(config)
    spec = decoder(
        config, [Layer(kinds[kind], inner, norms, parallel=True) for kind in types],
        norm=LayerNorm("norm", hidden, e, bias=False), logit_scale=real(config, "logit_scale", 1e-6, 1e6, default=1.0),
        tied=flag(outer_config(config), "tie_word_embeddings", BESIDE not in config),
    )  # fmt: skip
    return seeing(spec, config, tower)


def _heads(config: Config, kind: str) -> Attention:
    section: Any = config.get("rope_parameters") or {}
    if not isinstance(section, dict):
        raise CheckpointError(f"config.json: rope_parameters: must be an object, not {section!r:.80}")
    bias, head_dim = flag(config, "attention_bias", False), head_size(config)
    groups = {name: group for name, group in section.items() if isinstance(group, dict)}
    still = kind in section and section[kind] is None
    turned = (
        rope({**config, "rope_parameters": groups or section}, head_dim, kind=kind if groups else "") if not still else None
    )
    if turned is not None and not is_blind(config):
        own = {**config, "rope_parameters": groups.get(kind, section)}
        turned = replace(turned, sections=read_sections(own, turned.dim, mixed=True, absent=[24, 20, 20]), mixed=True)
    each = attention({**config, "rope_parameters": None}, head_dim=head_dim, bias=bias, out_bias=bias)
    return replace(each, rope=turned, window=sliding_window(config) if kind == SLIDING else 0)
