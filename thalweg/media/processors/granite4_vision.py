"""Granite 4 Vision: LLaVA-NeXT's tiles, with fewer vectors than patches."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from thalweg.checkpoint.config import Config
from thalweg.errors import CheckpointError
from thalweg.media.processors.base import Size, outer
from thalweg.media.processors.llava_next import LlavaNext, build

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs


class Granite4Vision(LlavaNext, frozen=True, kw_only=True):
    edge: int
    """Vectors along an edge of a tile."""

    @property
    def each(self) -> int:
        return self.edge

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        import numpy as np

        result = super().preprocess(views, size)
        result.keep = np.zeros(len(views) * self.edge**2, np.int32)
        return result


def read_rate(config: Config) -> tuple[int, int]:
    """`downsample_rate`: edges of the queries of a window, and of the window. CheckpointError."""
    found = outer(config).get("downsample_rate")
    parts = re.fullmatch(r"([1-9]\d?)/([1-9]\d?)", found) if isinstance(found, str) else None
    if parts is None:
        raise CheckpointError(f'config.json: downsample_rate: must be two numbers, as "4/8", not {found!r:.40}')
    return int(parts[1]), int(parts[2])


def granite4_vision(config: Config, options: Config) -> Granite4Vision:
    result, (queries, window) = build(config, options, [], "siglip_vision_model", "full"), read_rate(config)
    return Granite4Vision(**msgspec.structs.asdict(result), edge=result.side // result.patch // window * queries)
