"""Biases: logit_bias, bad words of one token, and stop ids, which are banned up to min_tokens."""

from __future__ import annotations

import numpy as np

from thalweg.engine.control.parts.builder import FOREVER, Builder, StepRows
from thalweg.engine.messages import TokenSampling
from thalweg.hal.parts.bias import Bias


class BiasBuilder(Builder):
    part = Bias

    def is_enabled(self, p: TokenSampling) -> bool:
        if p.grammar is not None:  # its mask bans them
            return bool(p.logit_bias)
        waits = p.min_tokens > 0 and bool(p.eos_ids or p.stop_ids)
        return bool(p.logit_bias) or waits or any(len(w) == 1 for w in p.bad_words)

    def build(self, work: StepRows) -> tuple[Bias | None, int]:
        """Valid until the first sequence reaches min_tokens: the token a step samples has the index `length`, and with drafts
        one more for each."""
        rows: list[int] = []
        tokens: list[int] = []
        values: list[float] = []
        state, lasts, ban = work.state, FOREVER, float("-inf")
        for row, request in work.rows(self.flag):
            p = request.sampling
            always, early, left = [*p.logit_bias], list[tuple[int, float]](), 0
            if p.grammar is None:
                always += ((w[0], ban) for w in p.bad_words if len(w) == 1)
                early = [(i, ban) for i in (*p.eos_ids, *p.stop_ids)]
                left = int(state.stop_from[request.slot] - state.length[request.slot])
            if left > 0:
                lasts = min(lasts, left)
            for ahead, at in enumerate(work.logit_rows(row)):
                pairs = always + early if ahead < left else always
                rows += [at] * len(pairs)
                tokens += [t for t, _ in pairs]
                values += [v for _, v in pairs]
        if not rows:
            return None, lasts
        return Bias(np.array(rows, np.int32), np.array(tokens, np.int32), np.array(values, np.float32)), lasts
