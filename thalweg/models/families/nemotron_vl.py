"""Nemotron Nano VL and Nemotron 3 Omni, for text and images: C-RADIO encoder, merged patches, Nemotron-H decoder."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, architecture, integer, text
from thalweg.errors import UnsupportedModelError
from thalweg.media.processors.base import shuffle
from thalweg.media.processors.nemotron_vl import canonical_vision
from thalweg.models.families import nemotron_h
from thalweg.models.families.common import hidden_size
from thalweg.models.families.multimodal import is_blind, seeing
from thalweg.models.families.towers.common import outer_config, size, vision_config
from thalweg.models.families.towers.radio import NAMES as RADIO
from thalweg.models.families.towers.radio import ROOT, radio
from thalweg.models.spec import ModelSpec, Norm, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

BACKBONE = "backbone."
NAMES = (*RADIO, ("mlp1.", f"{BACKBONE}mlp1."), ("language_model.model.", BACKBONE), ("language_model.backbone.", BACKBONE))
SOUND = ("sound_encoder.", "sound_projection.", "audio_tower.", "embed_audio.")
OF_IMAGES = ("vision_model.", "vision_final_layernorm.", ROOT, f"{BACKBONE}mlp1.")
"""Prefixes of the encoder's tensors and of the projector's."""


def nemotron_vl(config: Config) -> ModelSpec:
    spec = replace(nemotron_h.nemotron_h(config), mtp=None)
    unread = (*spec.names.skip, *(f"language_model.{name}" for name in spec.names.skip), *SOUND)
    return seeing(spec, config, _tower, replace=NAMES, skip=(*unread, *(OF_IMAGES if is_blind(config) else ())))


def _tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    """Omni models embed pairs of frames, unless the file names another number."""
    around, section = outer_config(config), canonical_vision(vision_config(config))
    section = {"video_temporal_patch_size": 2, **section} if "Omni" in architecture(config) else section
    if text(around, "ps_version", "v2") != "v2":
        raise UnsupportedModelError("config.json: ps_version: this version only supports v2")
    merge = shuffle(around, "downsample_ratio")
    wide, inner = size(section, "hidden_size", 1280) * merge**2, size(around, "projector_hidden_size", 4096)
    projector = ProjectorSpec(
        root=f"{BACKBONE}mlp1.", group=merge**2, after=(Norm("0", wide, 1e-5),),
        steps=(ProjectorLayer("1", wide, inner, False, "relu2"), ProjectorLayer("3", inner, hidden_size(config))),
    )  # fmt: skip
    return radio(section, projector, normed=integer(config, "num_nextn_predict_layers", low=0, default=0) > 0)
