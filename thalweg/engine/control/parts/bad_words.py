"""Bad words of several tokens. Single tokens are biases."""

from __future__ import annotations

import numpy as np

from thalweg.engine.control.parts.builder import FOREVER, Builder, StepRows
from thalweg.engine.messages import TokenSampling
from thalweg.hal.parts.bad_words import BadWords


class BadWordsBuilder(Builder):
    part = BadWords
    looks_back = True

    def is_enabled(self, p: TokenSampling) -> bool:
        return p.grammar is None and any(len(w) > 1 for w in p.bad_words)

    def build(self, work: StepRows) -> tuple[BadWords, int]:
        requested = ((work.logit_rows(row), r.sampling.bad_words) for row, r in work.rows(self.flag))
        found = [(at, w) for rows, words in requested for w in words if len(w) > 1 for at in rows]
        words = np.full((len(found), max(len(w) for _, w in found)), -1, np.int32)
        for i, (_, w) in enumerate(found):
            words[i, -len(w) :] = w
        return BadWords(np.array([at for at, _ in found], np.int32), words), FOREVER
