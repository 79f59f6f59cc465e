"""Kosmos-2: CLIP, learned queries that read it, and a decoder with norms within attention and feed-forward parts (Peng et al.
2023, https://arxiv.org/abs/2306.14824)."""

from __future__ import annotations

import math
from dataclasses import replace

from thalweg.checkpoint.config import BESIDE, Config, flag, integer, real
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import UNGATED, act, decoder, head_size, hidden_size, layer_count
from thalweg.models.families.multimodal import is_blind, seeing
from thalweg.models.families.towers.clip import encoder
from thalweg.models.families.towers.common import outer_config, size, vision_config
from thalweg.models.spec import (
    Attention,
    LatentReaderSpec,
    Layer,
    LayerNorm,
    LearnedEmbedding,
    ModelSpec,
    Norms,
    UngatedMLP,
    VisionSpec,
)
from thalweg.models.spec.vision import ProjectorSpec

VISION = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16, "image_size": 224,
    "patch_size": 14, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "model_type": "clip_vision_model",
}  # fmt: skip
FIRST = 2
"""Row of the first position."""
READER = "image_to_text_projection."
NAMES = (
    ("text_model.model.", "model."), ("text_model.lm_head.", "lm_head."), ("vision_model.model.", "model.vision_tower."),
    (READER, f"model.{READER}"),
)  # fmt: skip


def kosmos2(config: Config) -> ModelSpec:
    if flag(config, "add_cross_attention", False):
        raise UnsupportedModelError("config.json: text_config: add_cross_attention: true is not supported")
    hidden, heads, e = hidden_size(config), integer(config, "num_attention_heads"), real(config, "layer_norm_eps", default=1e-5)
    inner = integer(config, "ffn_dim", high=1 << 24, default=8192)
    layer = Layer(
        Attention(
            heads=heads, kv_heads=heads, head_dim=head_size(config), bias=True, out_bias=True, out="out_proj",
            out_norm=LayerNorm("inner_attn_ln", hidden, e),
        ),
        UngatedMLP(
            inner=inner, act=act(config, "activation_function", "gelu", UNGATED), bias=True, name="ffn",
            norm=LayerNorm("ffn_layernorm", inner, e),
        ),
        Norms(mixer=LayerNorm("self_attn_layer_norm", hidden, e), ffn=LayerNorm("final_layer_norm", hidden, e)),
    )  # fmt: skip
    rows = integer(config, "max_position_embeddings", high=1 << 24) + FIRST
    scale = math.sqrt(hidden) if flag(config, "scale_embedding", True) else 1.0
    spec = decoder(
        config, [layer] * layer_count(config), norm=LayerNorm("layer_norm", hidden, e), embed_scale=scale,
        tied=flag(config, "tie_word_embeddings", True),
        learned=(LearnedEmbedding("embed_positions", rows, first=FIRST, sines=hidden // 2 - 1),),
    )  # fmt: skip
    spec = seeing(spec, config, lambda c: _encoder(c, heads, scale), replace=NAMES)
    if not is_blind(config):
        return spec
    unread = ("model.vision_tower.", f"model.{READER}", READER, "vision_model.")
    return replace(spec, names=replace(spec.names, skip=(*spec.names.skip, *unread)))


def _encoder(config: Config, heads: int, scale: float) -> tuple[VisionSpec, tuple[str, ...]]:
    section = {**VISION, **vision_config(config), "model_type": "clip_vision_model"}
    around = {**config, BESIDE: {**outer_config(config), "vision_config": section}}
    result, unread = encoder(around, size(section, "num_hidden_layers", 24), ProjectorSpec(root="", steps=()), normed=True)
    reads = LatentReaderSpec(
        root=f"model.{READER}", queries=integer(outer_config(config), "latent_query_num", high=1 << 12, default=64),
        inputs=result.hidden, heads=heads,
    )  # fmt: skip
    return replace(result, resampler=reads, scale=scale), unread
