"""Video-LLaVA: LLaVA's square, from CLIP's smaller encoder."""

from __future__ import annotations

from thalweg.checkpoint.config import BESIDE, Config
from thalweg.media.processors.base import outer, token, vision
from thalweg.media.processors.clip import Clip, clip


def video_llava(config: Config, options: Config) -> Clip:
    seen = {"image_size": 224, "patch_size": 14, **vision(config)}
    own = {**outer(config), "vision_config": seen, "image_token_id": token(config, 32_000)}
    return clip({**config, BESIDE: own}, options)
