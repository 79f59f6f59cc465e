"""Idefics 2: an image keeps its ratio, and its four quarters may come before it. Each view has as many vectors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.media.processors.base import (
    BILINEAR,
    FILE,
    HALF,
    ImageProcessor,
    Size,
    View,
    check_shape,
    edge,
    outer,
    read_size,
    settings,
    token,
    vision,
)

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs

AROUND = "<fake_token_around_image>"
WORD = re.compile(r"[^\s<]")


class Idefics2(ImageProcessor, frozen=True, kw_only=True):
    side: int
    """Rows of the table of places, and columns."""
    shortest: int
    """Pixels of an edge, at least."""
    longest: int
    """Pixels of the longer edge, at most, unless the shorter one requires more."""
    queries: int
    """Vectors of a view."""
    cuts: bool

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        middle, centre = width // 2, height // 2
        whole = View((self._fit_size(width, height),))
        if not self.cuts:
            return (whole,)
        if not middle or not centre:
            raise ValueError(f"is {width} x {height} pixels: an image that is cut into quarters has 2 x 2 at least")
        parts = [
            (left, top, right, bottom)
            for top, bottom in ((0, centre), (centre, height))
            for left, right in ((0, middle), (middle, width))
        ]
        return (*(View((self._fit_size(part[2] - part[0], part[3] - part[1]),), part=part) for part in parts), whole)

    def _fit_size(self, width: int, height: int) -> Size:
        ratio = width / height
        if width >= height and width > self.longest:
            width, height = self.longest, int(self.longest / ratio)
        elif height > width and height > self.longest:
            width, height = int(self.longest * ratio), self.longest
        return max(width, self.shortest), max(height, self.shortest)

    @property
    def _views(self) -> int:
        return 5 if self.cuts else 1

    def count(self, size: Size) -> int:
        return self._views * self.queries

    def text(self, size: Size, token: str) -> str:
        return f"{AROUND}{token * self.queries}" * self._views + AROUND

    def join(self, text: str, adjacent: bool, following: str) -> str:
        """Adjacent images share the token between them, and a word does not touch an image."""
        text = text.removeprefix(AROUND) if adjacent else text
        return f"{text} " if WORD.match(following) else text

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        from thalweg.media import patches

        return patches.query_views(self, views, self.queries)


def idefics2(config: Config, options: Config) -> Idefics2:
    seen, around = vision(config), outer(config)
    if flag(options, "do_pad", True) is False:
        raise UnsupportedModelError(f"{FILE}: do_pad: false is not supported by this version")
    patch = edge(seen, "patch_size", 32)
    size = read_size(options, "size", ("shortest_edge", "longest_edge"), {"shortest_edge": 378, "longest_edge": 980})
    if len(size) != 2 or not patch <= size["shortest_edge"] <= size["longest_edge"]:
        raise CheckpointError(f"{FILE}: size: must have a shortest_edge of at least {patch}, and a longer longest_edge")
    reads = around.get("perceiver_config")
    return Idefics2(
        token=token(config, 32_001), patch=patch, side=edge(seen, "image_size", 224) // patch, marker="<image>",
        shortest=size["shortest_edge"], longest=size["longest_edge"], cuts=flag(options, "do_image_splitting", False),
        queries=integer(reads if isinstance(reads, dict) else {}, "resampler_n_latents", high=1 << 12, default=64),
        separate=True, **settings(options, mean=HALF, std=HALF, resample=BILINEAR),
    )  # fmt: skip
