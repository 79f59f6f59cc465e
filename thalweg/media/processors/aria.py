"""Aria: images keep their ratio in a square, whose size decides the number of vectors. Patches beyond the image are not
encoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.media.processors.base import FILE, HALF, ImageProcessor, Size, View, check_shape, outer, settings, token, vision

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs

QUERIES = {"1225": 128, "4900": 256}


class Aria(ImageProcessor, frozen=True, kw_only=True):
    edge: int
    """Pixels of an image's longer edge."""
    least: int
    """Pixels of the shorter edge, at least."""
    side: int
    """Of the table of places."""
    queries: int
    """Vectors that the encoder computes."""
    shown: int
    """The first of them, which the model reads."""

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        scale = self.edge / max(width, height)
        if width >= height:
            return (View(((self.edge, max(int(height * scale), self.least)),)),)
        return (View(((max(int(width * scale), self.least), self.edge),)),)

    def count(self, size: Size) -> int:
        return self.shown

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        from thalweg.media import patches

        return patches.query_patches(self, views[0])


def aria(config: Config, options: Config) -> Aria:
    seen, found = vision(config), outer(config).get("projector_patch_to_query_dict") or QUERIES
    numbers: dict[str, Any] = dict(found) if isinstance(found, dict) else {}
    patch, edge = integer(seen, "patch_size", default=32), integer(options, "max_image_size", default=980, where=FILE)
    shown = numbers.get(str((edge // patch) ** 2))
    if type(shown) is not int or edge % patch or not all(type(n) is int and n > 0 for n in numbers.values()):
        raise CheckpointError(
            f"{FILE}: max_image_size: projector_patch_to_query_dict of config.json has no number for {edge} pixels"
        )
    if flag(options, "split_image", False):
        raise UnsupportedModelError(f"{FILE}: split_image: true is not supported by this version")
    return Aria(
        token=token(config, 9), patch=patch, edge=edge,
        least=integer(options, "min_image_size", high=edge, default=336, where=FILE),
        side=integer(seen, "image_size", default=224) // patch, shown=shown, queries=max(numbers.values()), separate=True,
        **settings(options, mean=HALF, std=HALF),
    )  # fmt: skip
