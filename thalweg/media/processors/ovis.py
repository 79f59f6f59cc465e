"""Ovis 2 in the format of its authors: parts of an image keep their ratio. The mean colour fills them up to squares."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thalweg.checkpoint.config import Config, integer
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.media.processors.base import Size, View, check_shape, edge, settings, token, vision
from thalweg.media.processors.ovis2 import Ovis2
from thalweg.media.processors.tiles import MEAN, STD
from thalweg.media.processors.tokens import first_token

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs

PADS = ("<|image_pad|>", "<unused0>", "<|reserved_special_token_0|>")
"""Placeholders with Qwen2, Gemma 2 and Llama 3."""


class Ovis(Ovis2, frozen=True, kw_only=True):
    """One token represents every vector."""

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        columns, rows = self.tiling(width, height)
        whole = View((self._fit(width, height),))
        if columns * rows == 1:
            return (whole,)
        wide, high = width // columns, height // rows
        boxes = [
            (x * wide, y * high, width if x == columns - 1 else (x + 1) * wide, height if y == rows - 1 else (y + 1) * high)
            for y in range(rows) for x in range(columns)
        ]  # fmt: skip
        return (whole, *(View((self._fit(box[2] - box[0], box[3] - box[1]),), part=box) for box in boxes))

    def tiling(self, width: int, height: int) -> Size:
        """Columns and rows: transformers reads those of `Ovis2.tiling` in the other order."""
        rows, columns = super().tiling(width, height)
        return columns, rows

    def _fit(self, width: int, height: int) -> Size:
        if width == height:
            return self.side, self.side
        if width > height:
            return self.side, max(1, int(height / width * self.side))
        return max(1, int(width / height * self.side)), self.side

    def text(self, size: Size, token: str) -> str:
        return token * self.count(size)

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        import numpy as np

        from thalweg.media import patches

        squares = []
        for view in views:
            (high, wide, _), square = view.shape, np.zeros((self.side, self.side, 3), np.float32)
            top, left = (self.side - high) // 2, (self.side - wide) // 2
            square[top : top + high, left : left + wide] = patches.normalize(view, self)
            squares.append(square)
        return self.with_signs(patches.join_squares(self, squares, False, False, self.merge), len(views), size)


def ovis(config: Config, options: Config) -> Ovis:
    seen = vision(config)
    side, patch = edge(seen, "image_size", 448), edge(seen, "patch_size", 14)
    merge = integer(seen, "hidden_stride", high=16, default=1)
    if side // patch % merge:
        raise UnsupportedModelError(f"config.json: hidden_stride: {merge} must divide {side // patch} patches")
    crop = options.get("crop_size")
    if isinstance(crop, dict) and {crop.get("height", side), crop.get("width", side)} != {side}:
        raise CheckpointError(f"preprocessor_config.json: crop_size: must be {side}, the encoder's image_size")
    return Ovis(
        token=token(config), marker="<image>", side=side, patch=patch, merge=merge, least=1, covers=True,
        most=integer(options, "max_partition", high=64, default=9), **settings(options, mean=MEAN, std=STD),
    )  # fmt: skip


def read_pad(where: Path) -> dict[str, Any]:
    return {"image_token_id": first_token(where, PADS)}
