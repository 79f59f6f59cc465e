"""Positions along several axes, of prompts with images and of what follows them."""

from __future__ import annotations

import numpy as np

from thalweg.engine.control.parts.builder import FOREVER, Builder, Work
from thalweg.engine.messages import TokenSampling
from thalweg.hal.parts.axes import Axes


class AxesBuilder(Builder):
    part = Axes

    def asked(self, p: TokenSampling) -> bool:
        return p.axes is not None

    def build(self, work: Work) -> tuple[Axes | None, int]:
        """After the prompt the shift stays the same, however far a sequence goes."""
        shift = np.zeros((int(work.query.sum()), 3), np.int32)
        settled = True
        for row, request in work.rows(self.flag):
            axes = request.sampling.axes
            assert axes is not None, "it asks for it"
            begin, count, first = int(work.context[row]), int(work.query[row]), work.first_token(row)
            known = axes.shift[begin : begin + count]
            shift[first : first + len(known)] = known
            shift[first + len(known) : first + count] = axes.after
            settled &= not len(known)
        return Axes(shift), FOREVER if settled else 1
