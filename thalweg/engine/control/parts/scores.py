"""Prompt tokens with log probabilities, as chunks compute the tokens before them."""

from __future__ import annotations

import numpy as np

from thalweg.engine.control.parts.builder import FOREVER, Builder, ScoredRows, StepRows
from thalweg.engine.messages import TokenSampling
from thalweg.hal.parts.scores import Scores


class ScoresBuilder(Builder):
    part = Scores

    def is_enabled(self, p: TokenSampling) -> bool:
        return p.prompt_logprobs >= 0

    def is_active(self, work: StepRows) -> bool:
        return bool(work.chunks) and super().is_active(work)

    def build(self, work: StepRows) -> tuple[Scores | None, int]:
        """Advances the scheduled progress of these requests' scores."""
        state, rows, targets, size, level = work.state, [], [], 0, -1
        for row, chunk in enumerate(work.chunks, work.chunks_from):
            request = state.requests[chunk.slot]
            if request is None or request.sampling.prompt_logprobs < 0:
                continue
            begin = int(work.context[row])
            first = max(begin + 1, request.scored_scheduled)
            last = min(begin + chunk.take, request.prompt_len - 1)  # the tokens at positions first..last are scored
            if first > last:
                continue
            count = last - first + 1
            rows.append(np.arange(count, dtype=np.int32) + np.int32(work.first_token(row) + first - 1 - begin))
            targets.append(state.tokens[chunk.slot, first : last + 1])
            work.scored.append(ScoredRows(request, int(state.serial[chunk.slot]), first, size, size + count))
            request.scored_scheduled = last + 1
            size, level = size + count, max(level, request.sampling.prompt_logprobs)
        if not rows:
            return None, FOREVER
        return Scores(np.concatenate(rows), np.concatenate(targets), level=level), FOREVER
