"""Kimi-VL and Kimi K2.5: images keep their ratio, and are reduced where they have too many patches. Padding to a whole number
of vectors is black."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from thalweg.checkpoint.config import Config, integer
from thalweg.errors import UnsupportedModelError
from thalweg.media.processors.base import FILE, HALF, ImageProcessor, Size, View, check_shape, edge, outer, settings, vision

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs

PAD = 163_605
SIDE = 512
"""Patches along the longest edge."""
LONG = {
    "vt_hidden_size": "hidden_size", "vt_intermediate_size": "intermediate_size",
    "vt_num_attention_heads": "num_attention_heads", "vt_num_hidden_layers": "num_hidden_layers",
    "init_pos_emb_height": "pos_emb_height", "init_pos_emb_width": "pos_emb_width",
}  # fmt: skip


class Kimi(ImageProcessor, frozen=True, kw_only=True):
    merge: int
    most: int
    """Patches of an image."""
    longest: int
    """Patches along an edge."""
    side: int
    """Rows of the table of places, and columns."""
    head_dim: int

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        patches = max(1.0, height // self.patch) * max(1.0, width // self.patch)
        edge = self.longest * self.patch
        scale = min(1.0, math.sqrt(self.most / patches), edge / height, edge / width)
        wide, high = (min(max(1, int(each * scale)), edge) for each in (width, height))
        unit = self.patch * self.merge
        return (View(((wide, high),), (0, 0, -(-wide // unit) * unit, -(-high // unit) * unit)),)

    def count(self, size: Size) -> int:
        width, height = self.first_view_size(size)
        return width * height // (self.patch * self.merge) ** 2

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        from thalweg.media import patches

        return patches.alternating(self, views[0])


def kimi(config: Config, options: Config) -> Kimi:
    """Of their authors' file, or as transformers writes it."""
    seen, around = sizes(vision(config)), outer(config)
    key = next((k for k in ("in_patch_limit", "in_token_limit", "max_patches") if k in options), "max_patches")
    size = options.get("size")
    longest = size.get("max_height") if isinstance(size, dict) else options.get("patch_limit_on_one_side")
    if options.get("fixed_output_tokens") is not None or options.get("pad_input") is False:
        raise UnsupportedModelError(f"{FILE}: fixed_output_tokens and cropped images are not supported")
    token = "image_token_id" if around.get("image_token_id") is not None else "media_placeholder_token_id"
    return Kimi(
        token=integer(around, token, low=0, default=PAD), patch=integer(seen, "patch_size", default=14), merge=merge(seen),
        most=integer(options, key, high=1 << 20, default=4096 if key == "in_token_limit" else 16_384, where=FILE),
        longest=integer({"n": longest}, "n", high=1 << 12, default=SIDE, where=FILE), side=table(seen),
        head_dim=integer(seen, "hidden_size", default=1152) // integer(seen, "num_attention_heads", default=16),
        **settings(options, mean=HALF, std=HALF),
    )  # fmt: skip


def sizes(seen: Config) -> dict[str, Any]:
    """`vision_config` with the names that others have for them."""
    return {**seen, **{new: seen[old] for old, new in LONG.items() if seen.get(old) is not None}}


def merge(seen: Config) -> int:
    """Patches along each edge that become one vector."""
    return edge({"patch_size": seen.get("merge_kernel_size", 2)}, "patch_size", 2)


def table(seen: Config) -> int:
    side = integer(seen, "pos_emb_height", high=1 << 12, default=64)
    if integer(seen, "pos_emb_width", default=64) != side:
        raise UnsupportedModelError("config.json: vision_config: position tables other than squares are not supported")
    return side
