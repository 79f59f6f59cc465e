"""The positions of drafts in a step."""

from __future__ import annotations

import numpy as np

from thalweg.engine.control.parts.builder import FOREVER, Builder, StepRows
from thalweg.hal.parts.drafts import Drafts


class DraftsBuilder(Builder):
    part = Drafts

    def is_active(self, work: StepRows) -> bool:
        return work.drafts is not None

    def build(self, work: StepRows) -> tuple[Drafts | None, int]:
        drafts = work.drafts
        if drafts is None:
            return None, FOREVER
        column, last = np.arange(work.most_drafts + 1, dtype=np.int32), np.cumsum(drafts, dtype=np.int32)
        picked = column < drafts[:, None]
        pick = np.where(picked, (last - drafts)[:, None] + column, np.int32(-1))
        ends = np.cumsum(work.query, dtype=np.int32)
        return Drafts(((ends - drafts)[:, None] + column)[picked], pick, level=work.most_drafts), FOREVER
