"""Allowed tokens, by allowed_token_ids and by grammars."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from thalweg.hal.fields import Array, Part, dim
from thalweg.hal.parts.drafts import Drafts

if TYPE_CHECKING:
    from thalweg.hal.step import StepBatch


@dataclass(slots=True)
class Mask(Part):
    """Bit t % 32 of word t // 32: token t. `ahead` has no rows where no sequence with a mask has drafts."""

    logits = True
    drafts = True
    allowed: Array = dim("S words", np.uint32, fill=0xFFFFFFFF)  # [S, ceil(V / 32)]; of the token after the sequence's last
    ahead: Array = dim("N words", np.uint32, fill=0xFFFFFFFF)  # of the token in each draft's place, as in `Drafts.row`

    def check(self, batch: StepBatch) -> None:
        found = batch.get(Drafts)
        if self.ahead.shape[0] not in (0, 0 if found is None else found.row.shape[0]):
            raise ValueError(f"StepBatch.Mask.ahead: {self.ahead.shape[0]} rows, one is needed for each draft, or none")
