"""BLIP-2: one square, read by queries. Its vectors stand before the token that begins a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from thalweg.checkpoint.config import Config, integer
from thalweg.media.processors.base import Size, edge, only, outer, read_size, settings, token, vision
from thalweg.media.processors.clip import MEAN, STD, Clip
from thalweg.media.processors.florence2 import Florence2

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs

BEGIN = "</s>"
"""OPT's first token."""


class Blip2(Clip, frozen=True, kw_only=True):
    queries: int
    """Vectors of an image."""
    begin: str = BEGIN
    """Text of the first token of texts."""

    def count(self, size: Size) -> int:
        return self.queries

    def complete(self, prompt: str) -> str:
        """The image, the first token of texts, and the text. The prompt may omit the placeholder and that token."""
        images, text = prompt.count(self.marker) or 1, prompt.replace(self.marker, "").removeprefix(self.begin)
        return self.marker * images + self.begin + text

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        import numpy as np

        result = super().preprocess(views, size)
        result.keep = np.zeros(self.queries, np.int32)
        return result


class Blip2Source(Florence2, frozen=True, kw_only=True):
    """For T5, whose text encoder reads an image's vectors before the text."""

    def complete(self, prompt: str) -> str:
        return self.marker + prompt.replace(self.marker, "")


def blip_2(config: Config, options: Config) -> Blip2 | Blip2Source:
    seen = vision(config)
    side = edge(seen, "image_size", 224)
    only(read_size(options, "size", ("height", "width"), {"height": side, "width": side}).values(), side)
    queries = integer(outer(config), "num_query_tokens", high=1 << 12, default=32)
    if config.get("model_type") == "t5":
        return Blip2Source(
            token=token(config), marker="<image>", patch=edge(seen, "patch_size", 14), side=side, vectors=queries, source=True,
            **settings(options, mean=MEAN, std=STD),
        )  # fmt: skip
    return Blip2(
        token=token(config), marker="<image>", patch=edge(seen, "patch_size", 14), shortest=0, side=side, classes=True,
        whole=True, bare=True, queries=queries,
        **settings(options, mean=MEAN, std=STD),
    )  # fmt: skip
