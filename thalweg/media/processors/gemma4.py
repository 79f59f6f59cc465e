"""Gemma 4: images keep their ratio, and become as large as their number of vectors allows. Patches are averaged in squares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from thalweg.checkpoint.config import Config, integer, real
from thalweg.errors import UnsupportedModelError
from thalweg.media.processors.base import FILE, HALF, ImageProcessor, Size, View, check_shape, outer, settings, three, vision
from thalweg.media.processors.base import token as token_of

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs

BEGIN, END, IMAGE = 255_999, 258_882, 258_880


class Gemma4(ImageProcessor, frozen=True, kw_only=True):
    vectors: int
    """At most, of an image."""
    pool: int
    """Patches along each edge that are pooled by their mean."""
    rows: int
    """Of each of the two tables of places: columns and rows."""
    head_dim: int
    theta: float

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        unit, most = self.patch * self.pool, self.vectors * self.pool**2
        factor = math.sqrt(most * self.patch**2 / (width * height))
        wide, high = (math.floor(factor * edge / unit) for edge in (width, height))
        if not high:
            wide, high = min(width // height, self.vectors), 1
        elif not wide:
            wide, high = 1, min(height // width, self.vectors)
        return (View(((wide * unit, high * unit),)),)

    def count(self, size: Size) -> int:
        width, height = self.first_view_size(size)
        return width * height // (self.patch * self.pool) ** 2

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        from thalweg.media import patches

        return patches.axial(self, views[0])


def gemma4(config: Config, options: Config) -> Gemma4:
    seen = vision(config)
    if options.get("do_normalize") and (three(options, "image_mean", (0, 0, 0)), three(options, "image_std", (1, 1, 1))) != (
        (0.0,) * 3, (1.0,) * 3,
    ):  # fmt: skip
        raise UnsupportedModelError(f"{FILE}: do_normalize: this encoder requires values from 0 to 1")
    vectors = integer(options, "max_soft_tokens", high=1 << 14, default=280)
    together = config.get("use_bidirectional_attention") == "vision"
    if together and integer(config, "sliding_window", default=512) < vectors:
        raise UnsupportedModelError(f"{FILE}: max_soft_tokens: more than sliding_window of config.json")
    rope = seen.get("rope_parameters")
    hidden, heads = integer(seen, "hidden_size", default=768), integer(seen, "num_attention_heads", default=12)
    around = outer(config)
    return Gemma4(
        token=token_of(config, IMAGE), patch=integer(seen, "patch_size", default=16), vectors=vectors, together=together,
        edges=(integer(around, "boi_token_id", low=0, default=BEGIN), integer(around, "eoi_token_id", low=0, default=END)),
        pool=integer(options, "pooling_kernel_size", high=16, default=integer(seen, "pooling_kernel_size", high=16, default=3)),
        rows=integer(seen, "position_embedding_size", default=10_240),
        head_dim=integer(seen, "head_dim", default=64 if "hidden_size" not in seen else hidden // heads),
        theta=real(rope if isinstance(rope, dict) else {}, "rope_theta", 1, 1e9, default=100.0),
        **settings({**options, "do_normalize": True, "image_mean": list(HALF), "image_std": list(HALF)}, mean=HALF, std=HALF),
    )  # fmt: skip
