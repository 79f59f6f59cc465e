"""MiniCPM-V 2.6 to 4.5: SigLIP encoder, a resampler with 64 vectors per slice, Qwen2, Llama or Qwen3 decoder."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import BESIDE, Config, flag, integer
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families import llama, qwen2, qwen3
from thalweg.models.families.common import hidden_size
from thalweg.models.families.multimodal import seeing
from thalweg.models.families.towers.clip import encoder
from thalweg.models.families.towers.common import outer_config, size, vision_config, with_defaults
from thalweg.models.spec import ModelSpec, ResamplerSpec, VisionSpec
from thalweg.models.spec.vision import ProjectorSpec

SIGLIP = {
    "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
    "num_attention_heads": 16, "patch_size": 14, "image_size": 980,
}  # fmt: skip
NAMES = (
    ("llm.model.", "model."), ("llm.lm_head.", "lm_head."), ("vpm.", "model.vision_tower."), ("resampler.", "model.resampler."),
)  # fmt: skip
TEXT = {"2.6": qwen2.qwen2, "4.0": llama.llama, "4.5": qwen3.qwen3}
"""By `version` in config.json."""
HEAD = 128
"""Size of the resampler's heads."""
UNSEEN = ("vpm.", "resampler.", "model.vision_tower.", "model.resampler.")
SPEAKS = ("apm.", "audio_projection_layer.", "tts.", "tts_projector.")
"""Tensors for audio, of MiniCPM-o."""


def minicpm_v(config: Config) -> ModelSpec:
    version = str(outer_config(config).get("version", "2.5"))
    version = version if "." in version else f"{version}.0"
    if version not in TEXT:
        raise UnsupportedModelError(f"config.json: version: {version:.40} is not supported; supported: {', '.join(TEXT)}")
    spec = seeing(TEXT[version](config), config, tower, replace=NAMES)
    skip = (*spec.names.skip, *SPEAKS, *(UNSEEN if spec.vision is None else ()))
    return replace(spec, names=replace(spec.names, skip=skip))


def tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    config = with_defaults(config, **SIGLIP)
    section, around, hidden = vision_config(config), outer_config(config), hidden_size(config)
    count = size(section, "num_hidden_layers", 27)
    run = count - flag(around, "drop_vision_last_layer", True)
    if hidden % HEAD or not run:
        raise CheckpointError(f"config.json: hidden_size: {hidden} must be a multiple of {HEAD}, with layers in the encoder")
    resampler = ResamplerSpec(
        root="model.resampler.", queries=integer(around, "query_num", high=1 << 12, default=64), hidden=hidden,
        inputs=size(section, "hidden_size", 1152), heads=hidden // HEAD,
    )  # fmt: skip
    result, unread = encoder(
        {**config, BESIDE: {**around, "vision_config": {**section, "model_type": "siglip_vision_model"}}}, run,
        ProjectorSpec(root="", steps=()), normed=True,
    )  # fmt: skip
    return replace(result, resampler=resampler), unread
