"""Masks of the tokens that are allowed."""

from __future__ import annotations

import numpy as np

from thalweg.engine.control.parts.builder import FOREVER, Builder, Setup, Work
from thalweg.engine.messages import TokenSampling
from thalweg.hal.parts.mask import Mask


class MaskBuilder(Builder):
    part = Mask

    def __init__(self, setup: Setup) -> None:
        self._words = -(-setup.vocab // 32)

    def asked(self, p: TokenSampling) -> bool:
        return bool(p.allowed_ids)

    def build(self, work: Work) -> tuple[Mask, int]:
        mask = Mask.blank({"S": work.slots.size, "words": self._words})
        for row, request in work.rows(self.flag):
            mask.allowed[row] = 0
            ids = np.array(request.sampling.allowed_ids, np.int64)
            np.bitwise_or.at(mask.allowed[row], ids // 32, np.uint32(1) << (ids % 32).astype(np.uint32))
        return mask, FOREVER
