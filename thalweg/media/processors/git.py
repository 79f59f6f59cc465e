"""GIT: one square, which stands before the first token of a text. Positions of the text do not count its vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from thalweg.checkpoint.config import BESIDE, Config, integer
from thalweg.media.processors.base import Frame, Size, outer, vision
from thalweg.media.processors.clip import Clip, clip

if TYPE_CHECKING:
    import numpy as np

BEGIN = "[CLS]"
"""The first token of texts."""


class Git(Clip, frozen=True, kw_only=True):
    """The placeholder of a vector is the padding token."""

    def complete(self, prompt: str) -> str:
        """The image and the text. The prompt may omit the placeholder and the first token."""
        return f"{self.marker}{BEGIN}{prompt.replace(self.marker, '').removeprefix(BEGIN)}"

    def frame(self, size: Size, ids: Sequence[int], positions: np.ndarray) -> Frame:
        import numpy as np

        return Frame(0, 0, np.zeros((len(positions), 3), np.int32), 0)


def git(config: Config, options: Config) -> Git:
    seen = {"image_size": 224, "patch_size": 16, **vision(config), "model_type": "clip_vision_model"}
    own = {
        **outer(config), "vision_config": seen, "image_token_id": integer(config, "pad_token_id", low=0, default=0),
        "vision_feature_select_strategy": "full",
    }  # fmt: skip
    result = msgspec.structs.asdict(clip({**config, BESIDE: own}, options))
    return Git(**{**result, "marker": "<image>", "bare": True, "single": True, "together": True})
