"""Llama Nemotron Nano VL: C-RADIO encoder with tiles, merged patches, Llama decoder."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, text
from thalweg.errors import UnsupportedModelError
from thalweg.media.processors.base import shuffle
from thalweg.media.processors.nemotron_vl import canonical_vision
from thalweg.models.families.common import hidden_size
from thalweg.models.families.multimodal import of_kind, seeing
from thalweg.models.families.towers.common import outer_config, size, vision_config
from thalweg.models.families.towers.radio import NAMES as RADIO
from thalweg.models.families.towers.radio import ROOT as OTHER
from thalweg.models.families.towers.radio import radio
from thalweg.models.spec import LayerNorm, ModelSpec, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

EPS = 1e-5
ROOT, PROJECTOR = "model.vision_tower.", "model.multi_modal_projector."
NAMES = (*((stored, ROOT) for stored, _ in RADIO), ("mlp1.", PROJECTOR))


def llama_nemotron_vl(config: Config) -> ModelSpec:
    return seeing(of_kind(config, "llama", ("llama",)), config, tower, replace=NAMES)


def tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    around, section = outer_config(config), canonical_vision(vision_config(config))
    if text(around, "ps_version", "v2") != "v2":
        raise UnsupportedModelError("config.json: ps_version: this version only supports v2")
    merge = shuffle(around, "downsample_ratio")
    wide, inner = size(section, "hidden_size", 1280) * merge**2, size(around, "projector_hidden_size", 4096)
    projector = ProjectorSpec(
        root=PROJECTOR, group=merge**2, after=(LayerNorm("0", wide, EPS),),
        steps=(ProjectorLayer("1", wide, inner, True, "gelu"), ProjectorLayer("3", inner, hidden_size(config), True)),
    )  # fmt: skip
    result, unread = radio(section, projector, normed=False)
    return replace(result, root=ROOT), tuple(name.replace(OTHER, ROOT) for name in unread)
