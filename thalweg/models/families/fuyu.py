"""Fuyu: patches of an image, embedded by one matrix, among the tokens of Persimmon (Bavishi et al. 2023,
https://www.adept.ai/blog/fuyu-8b)."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import hidden_size
from thalweg.models.families.multimodal import is_blind, seeing
from thalweg.models.families.persimmon import persimmon
from thalweg.models.families.towers.common import size, vision_config
from thalweg.models.spec import ModelSpec, VisionSpec
from thalweg.models.spec.vision import ProjectorSpec

EMBEDDING = "vision_embed_tokens."


def fuyu(config: Config) -> ModelSpec:
    if config.get("model_type") not in ("fuyu", "persimmon"):
        raise UnsupportedModelError("config.json: text_config: model_type: only persimmon is supported")
    spec = seeing(persimmon(config), config, _encoder, replace=((EMBEDDING, f"model.{EMBEDDING}"),))
    if not is_blind(config):
        return spec
    return replace(spec, names=replace(spec.names, skip=(*spec.names.skip, EMBEDDING, f"model.{EMBEDDING}")))


def _encoder(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    section = vision_config(config)
    patch, channels = size(section, "patch_size", 30), size(section, "num_channels", 3)
    if channels != 3:
        raise UnsupportedModelError("config.json: num_channels: only 3 is supported")
    result = VisionSpec(
        hidden=hidden_size(config), layers=(), projector=ProjectorSpec(root="", steps=()), patch=EMBEDDING.removesuffix("."),
        kernel=(patch * patch * channels,), patch_bias=True, root="model.",
    )  # fmt: skip
    return result, ()
