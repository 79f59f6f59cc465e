"""BLIP: one square, which cross-attention reads. It has no placeholder in the prompt, whose first token the tokenizer lacks."""

from __future__ import annotations

import msgspec

from thalweg.checkpoint.config import BESIDE, Config, integer
from thalweg.media.processors.base import Size, outer, read_size, vision
from thalweg.media.processors.deepseek_vl import MEAN, STD
from thalweg.media.processors.trocr import Trocr, trocr


class Blip(Trocr, frozen=True, kw_only=True):
    """`token` stands nowhere in a prompt."""

    def complete(self, prompt: str) -> str:
        return prompt if self.marker in prompt else self.marker + prompt

    def text(self, size: Size, token: str) -> str:
        return ""

    def count(self, size: Size) -> int:
        return 0


def blip(config: Config, options: Config) -> Blip:
    """The size of files without one is that of transformers' class."""
    square = read_size(options, "size", ("height", "width"), {"height": 384, "width": 384})
    options = {"image_mean": list(MEAN), "image_std": list(STD), "resample": 3, **options, "size": square}
    own = {**outer(config), "vision_config": {"image_size": 384, **vision(config)}}
    result = msgspec.structs.asdict(trocr({**config, BESIDE: own}, options))
    more = {
        "token": integer(config, "pad_token_id", low=0, default=0), "marker": "<image>", "bare": True, "whole_prompt": False,
        "first_id": integer(config, "bos_token_id", low=0, default=30_522),
    }  # fmt: skip
    return Blip(**{**result, **more})
