"""LFM3-VL: images as of Qwen2-VL, positions of one axis, and the neighbours of each patch, over which its encoder convolves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from thalweg.checkpoint.config import BESIDE, Config, integer, real, section
from thalweg.media.processors.base import Size, outer, token, vision
from thalweg.media.processors.qwen_vl import QwenVL, qwen3_vl

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs


class Lfm3(QwenVL, frozen=True, kw_only=True):
    kernel: int
    """Rows and columns of patches that a convolution sees."""
    theta: float

    def grid(self, size: Size) -> None:
        return None

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        from thalweg.media import patches

        return patches.neighbouring_blocks(self, views)


def lfm3_vl(config: Config, options: Config) -> Lfm3:
    seen = vision(config)
    seen = {"hidden_size": 1024, **seen, "num_heads": seen.get("num_attention_heads", 16)}
    around = {**outer(config), "image_token_id": token(config, 125_030), "vision_config": seen}
    result = msgspec.structs.replace(qwen3_vl({**config, BESIDE: around}, options), side=0)
    rope = section(seen, "rope_parameters", "config.json: vision_config")
    return Lfm3(
        **msgspec.structs.asdict(result), kernel=integer(seen, "conv_kernel_size", high=31, default=3),
        theta=real(rope, "rope_theta", 1, 1e12, default=1e6, where="config.json: vision_config"),
    )  # fmt: skip
