"""Granite Speech: a conformer, a Q-Former, and Granite. Its adapter for audio is loaded as any other adapter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families import granite, multimodal
from thalweg.models.families.towers.common import act, outer_config
from thalweg.models.spec import ConformerSpec, ModelSpec, Names, QFormerSpec


def granite_speech(config: Config) -> ModelSpec:
    """Its embedding is also the output matrix, unless the outer configuration says otherwise."""
    around = outer_config(config)
    spec = granite.granite({**config, "tie_word_embeddings": flag(around, "tie_word_embeddings", True)})
    if config.get("language_model_only"):
        return replace(
            spec,
            names=Names(replace=multimodal.PREFIXES, skip=("encoder.", "projector.", "model.encoder.", "model.projector.")),
        )
    heard = _conformer(around)
    counters = tuple(f"{heard.root}layers.{i}.conv.batch_norm.num_batches_tracked" for i in range(heard.layers))
    return replace(spec, names=Names(replace=multimodal.PREFIXES, skip=counters), audio=heard)


def _part(around: Config, key: str) -> dict[str, Any]:
    found = around.get(key)
    if not isinstance(found, dict):
        raise CheckpointError(f"config.json: {key}: missing")
    return found


def _conformer(around: Config) -> ConformerSpec:
    section = _part(around, "encoder_config")
    hidden, heads = _size(section, "hidden_dim", 1024), _size(section, "num_heads", 8)
    context, reach = _size(section, "context_size", 200), _size(section, "max_pos_emb", 512)
    if context > reach:
        raise CheckpointError(f"config.json: encoder_config: context_size ({context}) exceeds max_pos_emb ({reach})")
    kept = _kept_layers(section, _size(section, "num_layers", 10))
    return ConformerSpec(
        inputs=_size(section, "input_dim", 160), hidden=hidden, layers=_size(section, "num_layers", 10), heads=heads,
        head_dim=_size({k: v for k, v in section.items() if v is not None}, "dim_head", hidden // heads),
        inner=hidden * _size(section, "feedforward_mult", 4), context=context, reach=reach,
        kernel=_size(section, "conv_kernel_size", 15), channels=hidden * _size(section, "conv_expansion_factor", 2),
        labels=_size(section, "output_dim", 42), projector=_projector(around, hidden * (1 + len(kept))), kept=kept,
    )  # fmt: skip


def _kept_layers(section: Config, layers: int) -> tuple[int, ...]:
    found = section.get("cat_hidden_layers") or []
    if not isinstance(found, list) or not all(type(i) is int and 0 <= i < layers for i in found):
        raise CheckpointError(f"config.json: encoder_config: cat_hidden_layers: must be a list of layers, below {layers}")
    return tuple(sorted(set(found)))


def _projector(around: Config, source: int) -> QFormerSpec:
    section, window, rate = (
        _part(around, "projector_config"),
        _size(around, "window_size", 15),
        _size(around, "downsample_rate", 5),
    )
    if section.get("model_type", "blip_2_qformer") != "blip_2_qformer" or section.get("use_qformer_text_input"):
        raise UnsupportedModelError("config.json: projector_config: only a blip_2_qformer without text is supported")
    if window % rate or _size(section, "encoder_hidden_size", 1408) != source:
        raise CheckpointError("config.json: projector_config: does not fit window_size, downsample_rate and encoder_config")
    return QFormerSpec(
        queries=window // rate, window=window, source=source, hidden=_size(section, "hidden_size", 768),
        heads=_size(section, "num_attention_heads", 12), inner=_size(section, "intermediate_size", 3072),
        layers=_size(section, "num_hidden_layers", 12), every=_size(section, "cross_attention_frequency", 2),
        act=act(section, "hidden_act", "gelu"), eps=real(section, "layer_norm_eps", default=1e-12),
    )  # fmt: skip


def _size(section: Config, key: str, default: int) -> int:
    return integer(section, key, high=1 << 20, default=default)
