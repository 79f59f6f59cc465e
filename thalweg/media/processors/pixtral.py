"""Pixtral and Mistral 3: images keep their ratio, and are cut into as many patches as they have. A token ends each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import UnsupportedModelError
from thalweg.media.processors.base import (
    FILE,
    ImageProcessor,
    Size,
    View,
    check_shape,
    outer,
    read_edges,
    read_size,
    settings,
    token,
    vision,
)

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
BREAK, END = "[IMG_BREAK]", "[IMG_END]"


class Pixtral(ImageProcessor, frozen=True, kw_only=True):
    longest: int
    """Pixels of the longer edge, at most."""
    merge: int
    """Patches along each edge that become one vector."""
    head_dim: int
    theta: float
    rounds: bool = False
    """A reduced edge is rounded, as in Mistral's own code; otherwise it is truncated."""
    unit: int = 0
    """Both edges become multiples of this many pixels; 0 = of the pixels of one vector. The patches of incomplete vectors are
    read by the encoder, and yield no vector."""
    rows: str = BREAK
    end: str = END

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        ratio = max(width, height) / self.longest
        if ratio > 1:
            width, height = (max(round(edge / ratio) if self.rounds else int(edge / ratio), 1) for edge in (width, height))
        unit = self.unit or self.patch * self.merge
        return (View((tuple(max(1, -(-edge // unit)) * unit for edge in (width, height)),)),)  # type: ignore[arg-type]

    def count(self, size: Size) -> int:
        columns, rows = self._grid(size)
        return columns * rows

    def text(self, size: Size, token: str) -> str:
        columns, rows = self._grid(size)
        return self.rows.join([token * columns] * rows) + self.end

    def _grid(self, size: Size) -> Size:
        unit = self.patch * self.merge
        width, height = self.first_view_size(size)
        return width // unit, height // unit

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        from thalweg.media import patches

        return patches.rotary_patches(self, views[0], self.merge, self.head_dim, self.theta, apart=True)


def lighton_ocr(config: Config, options: Config) -> Pixtral:
    """Without signs of rows and of the end."""
    edges = read_edges(options, "patch_size", ("height", "width"), {"height": 16, "width": 16})
    if len(set(edges.values())) != 1:
        raise UnsupportedModelError(f"{FILE}: patch_size: must be a square")
    around = {"spatial_merge_size": 2, **outer(config)}
    result = pixtral({**config, "beside_text": {**around, "image_token_id": token(config, 151_655)}}, options)
    return msgspec.structs.replace(result, unit=edges["height"], rows="", end="")


def pixtral(config: Config, options: Config) -> Pixtral:
    seen, around = vision(config), outer(config)
    size = read_size(
        options, "size", ("longest_edge", "height", "width"), {"longest_edge": integer(seen, "image_size", default=1540)}
    )
    longest = size.get("longest_edge") or size.get("height", 0)
    if not longest or size.get("width", longest) != longest:
        raise UnsupportedModelError(f"{FILE}: size: must name one longest_edge")
    heads, hidden = integer(seen, "num_attention_heads", default=16), integer(seen, "hidden_size", default=1024)
    rope = seen.get("rope_parameters") or {}
    theta = real(
        rope if isinstance(rope, dict) else {}, "rope_theta", 1, 1e9, default=real(seen, "rope_theta", 1, 1e9, default=1e4)
    )
    return Pixtral(
        token=token(config), patch=integer(seen, "patch_size", default=16), longest=longest,
        rounds=flag(options, "rounds", False), merge=integer(around, "spatial_merge_size", high=16, default=1),
        head_dim=integer(seen, "head_dim", default=hidden // heads), theta=theta, **settings(options, mean=MEAN, std=STD),
    )  # fmt: skip
