"""Chameleon: one square, the centre of an image after resizing its shorter edge, between two tokens."""

from __future__ import annotations

from collections.abc import Mapping

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.media.processors.base import FILE, Size, only, outer, read_size, settings, vision
from thalweg.media.processors.clip import Clip

OPEN, CLOSE, MARKER = "<racm3:break>", "<eoss>", "<image>"
"""Before an image's vectors, behind them, and their placeholder."""
LANCZOS, SCALE, MOST_LEVELS = 1, 0.0078, 8
ONES = (1.0, 1.0, 1.0)


class Chameleon(Clip, frozen=True, kw_only=True):
    def text(self, size: Size, token: str) -> str:
        return f"{OPEN}{token * self.count(size)}{CLOSE}"


def chameleon(config: Config, options: Config) -> Chameleon:
    names, times = outer(config).get("vocabulary_map"), vision(config).get("channel_multiplier", [1, 1, 2, 2, 4])
    if not isinstance(names, Mapping) or MARKER not in names:
        raise CheckpointError(f"config.json: vocabulary_map: {MARKER} is missing")
    if not isinstance(times, list) or not 0 < len(times) <= MOST_LEVELS:
        raise CheckpointError(f"config.json: vq_config: channel_multiplier: {times!r:.80} is not 1 to {MOST_LEVELS} numbers")
    patch, side = 1 << (len(times) - 1), integer(vision(config), "resolution", high=1 << 12, default=512)
    if side % patch:
        raise UnsupportedModelError(f"config.json: vq_config: resolution: {side} is not a multiple of {patch}")
    fit = read_size(options, "size", ("shortest_edge", "height", "width"), {"shortest_edge": side})
    crop = read_size(options, "crop_size", ("height", "width"), {"height": side, "width": side})
    cropped = flag(options, "do_center_crop", True)
    if not cropped and "shortest_edge" in fit:
        raise UnsupportedModelError(f"{FILE}: do_center_crop: false requires a size with height and width")
    only((crop if cropped else fit).values(), side)
    read = settings(options, mean=ONES, std=ONES, resample=LANCZOS)
    return Chameleon(
        token=integer(names, MARKER, low=0), patch=patch, shortest=fit.get("shortest_edge", 0), side=side, classes=False,
        whole=False, separate=True, marker=MARKER,
        **{**read, "scale": real(options, "rescale_factor", 1e-6, 1.0, default=SCALE, where=FILE)},
    )  # fmt: skip
