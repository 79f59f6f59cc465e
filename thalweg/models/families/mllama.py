"""Llama 3.2 Vision (Mllama): a Llama decoder with gated cross-attention in some layers, to the tiles of an image."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, integer, real
from thalweg.errors import CheckpointError
from thalweg.media.processors.base import edge, outer
from thalweg.media.processors.mllama import arrangements
from thalweg.models.families import llama as llama_text
from thalweg.models.families.common import eps, hidden_size, mlp, pre_norms
from thalweg.models.families.multimodal import blind, is_blind
from thalweg.models.families.towers.common import act, sees_all, size, vision_config
from thalweg.models.spec import (
    CrossAttention,
    Layer,
    LayerNorm,
    ModelSpec,
    Names,
    Norms,
    SourceMLP,
    TileSource,
    UngatedMLP,
)  # fmt: skip

CROSS = [3, 8, 13, 18, 23, 28, 33, 38]
READS = [3, 7, 15, 23, 30]
MORE_ROWS = 8
"""Rows of the embedding behind the vocabulary."""
PREFIXES = (("language_model.model.", "model."), ("language_model.lm_head.", "lm_head."), ("model.language_model.", "model."))


def mllama(config: Config) -> ModelSpec:
    spec = llama_text.llama({"rope_theta": 500_000.0, **config})
    cross = _indices(config, "cross_attention_layers", CROSS, len(spec.layers))
    if is_blind(config):
        return _without_images(spec, cross)
    spec = replace(spec, table_rows=spec.vocab + MORE_ROWS)
    heads = next(mixer for _, mixer in spec.mixers).widths
    source = _encoder(config)
    attention = CrossAttention(
        heads=heads[0], kv_heads=heads[1], head_dim=heads[2], sources=source.sources, varies=True, begins=True,
        width=hidden_size(config), norm=eps(config), gate="cross_attn_attn_gate", name="cross_attn", out="o_proj",
    )  # fmt: skip
    layer = Layer(attention, SourceMLP(mlp=mlp(config), gate="cross_attn_mlp_gate"), pre_norms(config))
    return replace(
        spec, layers=tuple(layer if i in cross else each for i, each in enumerate(spec.layers)), tile_source=source,
        prompt_ids=((_image_token(config, spec.vocab), spec.vocab - 1),), names=Names(replace=PREFIXES),
    )  # fmt: skip


def _without_images(spec: ModelSpec, cross: tuple[int, ...]) -> ModelSpec:
    """Text skips layers of cross-attention."""
    kept = tuple(i for i in range(len(spec.layers)) if i not in cross)
    unread = tuple(f"layers.{i}." for i in cross)
    spec = replace(spec, layers=tuple(spec.layers[i] for i in kept), numbers=kept, table_rows=spec.vocab + MORE_ROWS)
    return blind(spec, *unread, *(f"language_model.model.{name}" for name in unread))


def _image_token(config: Config, vocab: int) -> int:
    """The first row behind the vocabulary."""
    token = integer(outer(config), "image_token_index", low=0, default=128_256)
    if token != vocab:
        raise CheckpointError(f"config.json: image_token_index: must be {vocab}, the first behind the vocabulary, not {token}")
    return token


def _encoder(config: Config) -> TileSource:
    section = vision_config(config)
    hidden, e, depth = (
        size(section, "hidden_size", 1280),
        real(section, "norm_eps", default=1e-5),
        size(section, "num_hidden_layers", 32),
    )
    patch, tiles = edge(section, "patch_size", 14), integer(section, "max_num_tiles", high=64, default=4)
    heads = size(section, "attention_heads", size(section, "num_attention_heads", 16))
    layer = Layer(
        sees_all(heads, hidden),
        UngatedMLP(inner=size(section, "intermediate_size", 5120), act=act(section, "hidden_act", "gelu"), bias=True),
        Norms(mixer=LayerNorm("input_layernorm", hidden, e), ffn=LayerNorm("post_attention_layernorm", hidden, e)),
    )
    reads = _indices(section, "intermediate_layers_indices", READS, depth)
    if (width := size(section, "vision_output_dim", 7680)) != hidden * (1 + len(reads)):
        raise CheckpointError(f"config.json: vision_config: vision_output_dim: {width} is not {1 + len(reads)} x {hidden}")
    return TileSource(
        tiles=tiles, side=edge(section, "image_size", 448) // patch, kernel=(size(section, "num_channels", 3), patch, patch),
        hidden=hidden, layers=(layer,) * depth, last=(layer,) * size(section, "num_global_layers", 8), reads=reads,
        arrangements=len(arrangements(tiles)), eps=1e-5, outputs=hidden_size(config),
    )  # fmt: skip


def _indices(section: Config, key: str, default: list[int], layers: int) -> tuple[int, ...]:
    found = section.get(key)
    found = default if found is None else found
    if not isinstance(found, list) or not all(type(i) is int and 0 <= i < layers for i in found):
        raise CheckpointError(f"config.json: {key}: must be a list of layers below {layers}, not {found!r:.80}")
    return tuple(found)
