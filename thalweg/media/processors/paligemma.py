"""PaliGemma: every image is one square, whatever its ratio. All tokens of a prompt with an image attend to each other."""

from __future__ import annotations

import msgspec

from thalweg.checkpoint.config import Config, integer
from thalweg.media.processors.base import HALF, only, read_size, settings, token, vision
from thalweg.media.processors.clip import Clip

WINDOW = 4096
"""Of Gemma 2, where the file names none."""
LONGEST = 1 << 30
"""Tokens of a prompt for Gemma, which has no window."""


def colpali(config: Config, options: Config) -> Clip:
    """Of an encoder, whose steps hold whole prompts."""
    return msgspec.structs.replace(paligemma(config, options), together=False, prefix=0)


def paligemma(config: Config, options: Config) -> Clip:
    seen = vision(config)
    side = integer(seen, "image_size", default=224)
    only(read_size(options, "size", ("height", "width"), {"height": side, "width": side}).values(), side)
    window = integer(config, "sliding_window", default=WINDOW) if config.get("model_type") == "gemma2" else LONGEST
    return Clip(
        token=token(config, 256_000), patch=integer(seen, "patch_size", default=16), shortest=0, side=side, classes=False,
        whole=False, together=True, prefix=window, **settings(options, mean=HALF, std=HALF),
    )  # fmt: skip
