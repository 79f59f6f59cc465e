"""LLaVA's original format: config.json names a published vision encoder, whose sizes and image settings it omits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.checkpoint.native_images import READS

TOWER = "mm_vision_tower"
"""Key of the encoder's name."""
_CLIP = {
    "model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
    "num_attention_heads": 16, "patch_size": 14,
}  # fmt: skip
_SO400M = {
    "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 26,
    "num_attention_heads": 16, "patch_size": 14,
}  # fmt: skip
ENCODERS: dict[str, Mapping[str, Any]] = {
    "google/siglip-so400m-patch14-384": {**_SO400M, "image_size": 384},
    "openai/clip-vit-large-patch14": {**_CLIP, "image_size": 224},
    "openai/clip-vit-large-patch14-336": {**_CLIP, "image_size": 336},
}
"""Name -> its sizes. SigLIP's last layer is neither stored nor computed."""


def add_encoder(config: dict[str, Any]) -> dict[str, Any]:
    """With `vision_config`, {} if the encoder is unknown, and with the settings of its image processor."""
    seen = dict(ENCODERS.get(config[TOWER], {}))
    side = seen.get("image_size")
    squares = {"height": side, "width": side}
    settings: dict[str, Any] = {"size": squares, "crop_size": squares}
    if seen.get("model_type") == "siglip_vision_model":
        settings |= {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    return {**config, "vision_config": seen, **({READS: settings} if seen else {})}
