"""Video-LLaVA, for images: CLIP encoder, two linear layers, Llama decoder. The encoder of videos is not loaded."""

from __future__ import annotations

from thalweg.checkpoint.config import Config
from thalweg.models.families.multimodal import of_kind, seeing
from thalweg.models.families.towers.clip import clip
from thalweg.models.families.towers.common import with_defaults
from thalweg.models.spec import ModelSpec, VisionSpec

NAMES = (
    ("model.image_tower.vision_model.", "model.vision_tower."), ("image_tower.vision_model.", "model.vision_tower."),
    ("model.image_tower.", "model.vision_tower."), ("image_tower.", "model.vision_tower."),
)  # fmt: skip
VIDEO = ("video_tower.", "model.video_tower.")
VISION = {"patch_size": 14, "image_size": 224}


def video_llava(config: Config) -> ModelSpec:
    return seeing(of_kind(config, "llama", ("llama",)), config, tower, replace=NAMES, skip=VIDEO)


def tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    return clip(with_defaults(config, **VISION))
