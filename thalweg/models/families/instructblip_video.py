"""InstructBLIP for videos: each frame is encoded as InstructBLIP's image is. Vicuna decoder."""

from __future__ import annotations

from thalweg.checkpoint.config import Config
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.instructblip import instructblip
from thalweg.models.spec import ModelSpec


def instructblip_video(config: Config) -> ModelSpec:
    if config.get("model_type", "llama") != "llama":
        raise UnsupportedModelError("config.json: text_config: only Vicuna (llama) is supported for videos, not T5")
    return instructblip(config)
