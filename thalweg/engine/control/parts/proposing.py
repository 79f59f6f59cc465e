"""The progress of a step's proposer in each sequence."""

from __future__ import annotations

import numpy as np

from thalweg.engine.control.parts.builder import Builder, Setup, StepRows
from thalweg.hal.parts.proposing import Proposing


class ProposingBuilder(Builder):
    part = Proposing

    def __init__(self, setup: Setup) -> None:
        self._serial = np.zeros(setup.seqs + 1, np.int64)
        self._followed = np.zeros(setup.seqs + 1, np.int32)
        """Per slot: the end of the last step with this part, for the sequence of that serial."""

    def is_active(self, work: StepRows) -> bool:
        return work.proposes > 0

    def build(self, work: StepRows) -> tuple[Proposing, int]:
        """Tokens that verification rejects are followed too, so that a sequence may go back by those."""
        slots, context, serial = work.slots, work.context, work.state.serial[work.slots]
        fresh = (context == 0) | (self._serial[slots] != serial) | (self._followed[slots] < context)
        self._serial[slots], self._followed[slots] = serial, context + work.query
        return Proposing(fresh, work.state.capacity[slots], level=work.proposes), 1
