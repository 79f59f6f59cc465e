"""Cosmos 3 Edge: sizes as of GLM-4V, patches with a pixel's channels adjacent, a table of places stretched with a filter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from thalweg.checkpoint.config import Config, integer
from thalweg.media.processors.base import FILE, HALF, read_size, settings, token, vision
from thalweg.media.processors.qwen_vl import Glm4v

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs

EDGES = ("shortest_edge", "longest_edge")
LEAST, MOST = 256 * 256, 4096 * 4096


class Cosmos3Edge(Glm4v, frozen=True, kw_only=True):
    def preprocess(self, views: Sequence[np.ndarray], size: tuple[int, int]) -> PatchInputs:
        from thalweg.media import patches

        return patches.interpolated_patches(self, views[0], self.merge, self.side)


def cosmos3_edge(config: Config, options: Config) -> Cosmos3Edge:
    seen = vision(config)
    size = read_size(options, "size", EDGES, {EDGES[0]: LEAST, EDGES[1]: MOST})
    return Cosmos3Edge(
        token=token(config, 19), patch=integer(seen, "patch_size", high=1 << 10, default=16),
        merge=integer(seen, "spatial_merge_size", high=16, default=2),
        frames=integer(options, "temporal_patch_size", high=1, default=1, where=FILE), head_dim=0,
        least=size.get(EDGES[0], LEAST), most=size.get(EDGES[1], MOST),
        side=math.isqrt(integer(seen, "num_patches", high=1 << 20, default=256)), **settings(options, mean=HALF, std=HALF),
    )  # fmt: skip
