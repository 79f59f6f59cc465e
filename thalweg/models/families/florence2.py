"""Florence-2: DaViT encoder, whose vectors stand before a text in BART's encoder, and BART's decoder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import CheckpointError
from thalweg.media.processors.florence2 import STAGES
from thalweg.models.families.bart import bart
from thalweg.models.families.common import hidden_size
from thalweg.models.families.multimodal import BLIND, is_blind
from thalweg.models.families.towers.common import act, outer_config, size, vision_config
from thalweg.models.spec import DaViTSpec, DaViTStage, ModelSpec, Names

MOST = 1 << 14
"""The largest number of a stage."""
PREFIXES = (("model.language_model.", "model."),)
UNREAD = "model.multi_modal_projector.visual_temporal_embed."
"""Computed positions in time."""


def florence2(config: Config) -> ModelSpec:
    tied = outer_config(config).get("tie_word_embeddings", True)
    spec = bart({**config, "tie_word_embeddings": tied})
    source = spec.text
    assert source is not None
    skip = tuple(f"model.language_model.{name.removeprefix('model.')}" for name in spec.names.skip)
    spec = replace(spec, logit_bias="")
    if is_blind(config):
        return replace(spec, names=Names(replace=PREFIXES, skip=(*BLIND.skip, *skip)))
    encoder = replace(source, vision=_encoder(config))
    return replace(spec, text=encoder, names=Names(replace=PREFIXES, skip=(UNREAD, *skip)))


def _encoder(config: Config) -> DaViTSpec:
    section = vision_config(config)
    lists: dict[str, list[Any]] = {key: section.get(key) or default for key, default in STAGES.items()}
    if not all(isinstance(each, list) and len(each) == len(lists["depths"]) for each in lists.values()):
        raise CheckpointError(f"config.json: vision_config: {', '.join(lists)}: must be lists of one length")
    for key, each in lists.items():
        if key == "patch_prenorm":
            if not all(isinstance(value, bool) for value in each):
                raise CheckpointError(f"config.json: vision_config: {key}: must hold true or false, not {each!r:.80}")
        elif not all(type(n) is int and (key == "patch_padding" or n > 0) and 0 <= n <= MOST for n in each):
            raise CheckpointError(f"config.json: vision_config: {key}: must hold numbers from 1 to {MOST}, not {each!r:.80}")
    keys = ("embed_dim", "depths", "patch_size", "patch_stride", "patch_padding", "patch_prenorm", "num_heads", "num_groups")
    stages = tuple(DaViTStage(*each) for each in zip(*(lists[key] for key in keys), strict=True))
    if (outputs := size(section, "projection_dim", 1024)) != hidden_size(config):
        raise CheckpointError(f"config.json: vision_config: projection_dim: {outputs} is not d_model, {hidden_size(config)}")
    return DaViTSpec(
        token=integer(outer_config(config), "image_token_id", low=0, default=51_289),
        channels=size(section, "in_channels", 3), stages=stages,
        window=size(section, "window_size", 12), inner=real(section, "mlp_ratio", 0.01, 100, default=4.0),
        act=act(section, "activation_function", "gelu"), bias=flag(section, "qkv_bias", True),
        places=size(section, "max_position_embeddings", 50), outputs=outputs,
    )  # fmt: skip
