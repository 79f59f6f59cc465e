"""LLaVA-NeXT and LLaVA-OneVision in the format of their authors, whose tokenizers may have no placeholder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from thalweg.checkpoint.config import Config, integer, text
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.media.processors.base import Size, outer, settings, token, vision
from thalweg.media.processors.llava_next import MEAN, STD, LlavaNext
from thalweg.media.processors.tokens import first_token

ANYRES = "anyres"
PLACEHOLDERS = ("<image>", "<unk>", "<|endoftext|>")
"""Added tokens, any of which represents a vector of an image; the first that the tokenizer has is used."""


def llava_original(config: Config, options: Config) -> LlavaNext:
    seen, around = vision(config), outer(config)
    ratio = text(around, "image_aspect_ratio", "square")
    most = ratio.removeprefix(f"{ANYRES}_max_")
    if ratio != ANYRES and not (most.isdecimal() and 1 <= int(most) <= 64):
        words = "only anyres and anyres_max_N are supported"
        raise UnsupportedModelError(f"config.json: image_aspect_ratio: {ratio!r:.40}: {words}")
    side = integer(seen, "image_size", default=336)
    return LlavaNext(
        token=token(config), patch=integer(seen, "patch_size", default=14), side=side,
        pinpoints=_grids(around.get("image_grid_pinpoints"), side), classes=seen.get("model_type") == "clip_vision_model",
        most=0 if ratio == ANYRES else int(most), marker="<image>", **settings(options, mean=MEAN, std=STD),
    )  # fmt: skip


def _grids(found: Any, side: int) -> tuple[Size, ...]:
    """Height and width of each. The file has pairs of width and height, or "(1x1),...,(6x6)": all grids between two."""
    if isinstance(found, str):
        grids = [(int(a), int(b)) for a, b in re.findall(r"\((\d{1,2})x(\d{1,2})\)", found)]
        (left, top), (right, bottom) = (grids[0], grids[-1]) if grids else ((1, 1), (0, 0))
        found = [[x * side, y * side] for x in range(left, right + 1) for y in range(top, bottom + 1)]
    whole = isinstance(found, list) and found and all(
        isinstance(p, list) and len(p) == 2 and all(type(n) is int and 0 < n <= 1 << 14 and n % side == 0 for n in p)
        for p in found
    )  # fmt: skip
    if not whole:
        raise CheckpointError(f"config.json: image_grid_pinpoints: must be pairs of multiples of {side}, or (1x1),...,(6x6)")
    return tuple((high, wide) for wide, high in found)


def read_placeholder(where: Path) -> dict[str, Any]:
    """`image_token_id`: the first of `PLACEHOLDERS` that the tokenizer's files have. CheckpointError if they have none."""
    return {"image_token_id": first_token(where, PLACEHOLDERS)}
