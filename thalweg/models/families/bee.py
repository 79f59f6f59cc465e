"""Bee: LLaVA-OneVision with a norm before a wider projector, Qwen3 decoder."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config
from thalweg.models.families.common import hidden_size
from thalweg.models.families.llava_next import SIGLIP
from thalweg.models.families.multimodal import of_kind, seeing
from thalweg.models.families.towers.clip import features
from thalweg.models.families.towers.common import size, vision_config, with_defaults
from thalweg.models.spec import LayerNorm, ModelSpec, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

EPS = 1e-6
WIDER = 4
"""The projector's inner size, in hidden sizes of the decoder."""


def bee(config: Config) -> ModelSpec:
    return seeing(of_kind(config, "qwen3"), config, tower)


def tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    config = with_defaults(config, **SIGLIP)
    result, unread = features(config, 26, -1)
    hidden, out = size(vision_config(config), "hidden_size", 1152), hidden_size(config)
    projector = ProjectorSpec(
        root="model.multi_modal_projector.", before=LayerNorm("pre_norm", hidden, EPS),
        steps=(
            ProjectorLayer("linear_1", hidden, WIDER * out, True, "gelu"), ProjectorLayer("linear_2", WIDER * out, out, True)
        ),
    )  # fmt: skip
    return replace(result, projector=projector, newline="model.image_newline"), unread
