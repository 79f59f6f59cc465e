"""LLaVA-NeXT, Granite Vision and LLaVA-OneVision: a tiled vision encoder with a learned end-of-row vector.

Granite's `logits_scaling` counts, as in its text models. Transformers' class for images leaves it out."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, text
from thalweg.models.families.multimodal import of_kind, seeing
from thalweg.models.families.towers.clip import features
from thalweg.models.families.towers.common import with_defaults
from thalweg.models.spec import ModelSpec, VisionSpec

CLIP = {
    "model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096, "patch_size": 14, "image_size": 336,
    "num_hidden_layers": 24, "num_attention_heads": 16,
}  # fmt: skip
SIGLIP = {
    "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "patch_size": 14, "image_size": 384,
    "num_hidden_layers": 26, "num_attention_heads": 16,
}  # fmt: skip


def llava_next(config: Config) -> ModelSpec:
    return _model(config, "llama", CLIP, -2)


def llava_onevision(config: Config) -> ModelSpec:
    return _model(config, "qwen2", SIGLIP, -1)


def _model(config: Config, kind: str, defaults: dict[str, object], layer: int) -> ModelSpec:
    spec = of_kind(config, kind)
    scale = spec.embed_scale if text(config, "model_type", kind) == "granite" else 1.0  # vectors of images are scaled, too

    def tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
        config = with_defaults(config, **defaults)
        result, unread = features(config, 24, layer)
        return replace(result, newline="model.image_newline", scale=scale), unread

    return seeing(spec, config, tower)
