"""Kosmos-2: one square, read by queries. Its vectors stand between two tokens, behind the first token of a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from thalweg.checkpoint.config import BESIDE, Config, integer
from thalweg.media.processors.base import Size, outer, vision
from thalweg.media.processors.clip import Clip, clip

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs

BEGIN, OPEN, CLOSE = "<s>", "<image>", "</image>"
"""Before a text, an image's vectors, and behind them."""


class Kosmos2(Clip, frozen=True, kw_only=True):
    """The placeholder of a vector is the padding token. That of transformers is the token of a word for each vector."""

    queries: int
    """Vectors of an image."""

    def count(self, size: Size) -> int:
        return self.queries

    def text(self, size: Size, token: str) -> str:
        return f"{OPEN}{token * self.queries}{CLOSE}"

    def complete(self, prompt: str) -> str:
        """The first token of texts, the image, and the text. The prompt may omit the placeholder and that token."""
        return f"{BEGIN}{self.marker} {prompt.replace(self.marker, '').removeprefix(BEGIN).lstrip(' ')}"

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        import numpy as np

        result = super().preprocess(views, size)
        result.keep = np.zeros(self.queries, np.int32)
        return result


def kosmos2(config: Config, options: Config) -> Kosmos2:
    seen = {"image_size": 224, "patch_size": 14, **vision(config), "model_type": "clip_vision_model"}
    own = {
        **outer(config), "vision_config": seen, "image_token_id": integer(config, "pad_token_id", low=0, default=1),
        "vision_feature_select_strategy": "full",
    }  # fmt: skip
    result = msgspec.structs.asdict(clip({**config, BESIDE: own}, options))
    queries = integer(outer(config), "latent_query_num", high=1 << 12, default=64)
    return Kosmos2(**{**result, "queries": queries, "marker": OPEN, "bare": True, "single": True})
