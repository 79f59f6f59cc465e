"""Cached tokens of a prompt, for sequences that read their history."""

from __future__ import annotations

import numpy as np

from thalweg.engine.control.parts.builder import FOREVER, Builder, StepRows
from thalweg.engine.control.slots import LOOKBACK
from thalweg.hal.parts.history import History


class HistoryBuilder(Builder):
    part = History

    def is_active(self, work: StepRows) -> bool:
        return bool(work.flags & LOOKBACK) and any(c.cached > 0 for c in work.chunks)

    def build(self, work: StepRows) -> tuple[History | None, int]:
        state = work.state
        found = [(c.slot, c.cached) for c in work.chunks if c.cached > 0 and state.flags[c.slot] & LOOKBACK]
        if not found:
            return None, FOREVER
        slots, counts = (np.array(a, np.int32) for a in zip(*found, strict=True))
        positions = np.concatenate([np.arange(n, dtype=np.int32) for n in counts])
        return History(np.repeat(slots, counts), positions, np.concatenate([state.tokens[s, :n] for s, n in found])), FOREVER
