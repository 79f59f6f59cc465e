"""LLaVA's image with other texts around its vectors: Mantis and Tarsier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from thalweg.checkpoint.config import Config, integer
from thalweg.errors import CheckpointError
from thalweg.media.processors.base import Size, outer
from thalweg.media.processors.clip import Clip, clip
from thalweg.media.processors.tokens import load_tokens

ADDED = "added_tokens"


class Mantis(Clip, frozen=True, kw_only=True):
    def text(self, size: Size, token: str) -> str:
        return f"<Image>{super().text(size, token)}</Image>)"


class Tarsier(Clip, frozen=True, kw_only=True):
    line: str
    end: str
    """Tokens behind each row of vectors, and behind the last."""

    def text(self, size: Size, token: str) -> str:
        edge = self.side // self.patch
        return (token * edge + self.line) * edge + self.end


def mantis(config: Config, options: Config) -> Mantis:
    return Mantis(**{**msgspec.structs.asdict(clip(config, options)), "number": "(image {1}: "})


def tarsier(config: Config, options: Config) -> Tarsier:
    around, result = outer(config), clip(config, options)
    known = around[ADDED]
    texts = []
    for key in ("image_newline_idx", "image_new_idx"):
        id = integer(around, key, low=0)
        if id not in known:
            raise CheckpointError(f"config.json: {key}: {id} is none of the tokenizer's added tokens")
        texts.append(known[id])
    if result.whole:
        raise CheckpointError("config.json: vision_feature_select_strategy: must be default: a token ends each row of patches")
    return Tarsier(**{**msgspec.structs.asdict(result), "line": texts[0], "end": texts[1]})


def read_added(where: Path) -> dict[str, Any]:
    """The tokenizer's added tokens, for `tarsier`."""
    return {ADDED: load_tokens(where)}
