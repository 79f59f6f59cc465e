"""Positions along several axes (M-RoPE), for prompts with such inputs and for the tokens after them."""

from __future__ import annotations

import numpy as np

from thalweg.engine.control.parts.builder import FOREVER, Builder, Setup, StepRows
from thalweg.engine.control.request import Request
from thalweg.hal.parts.axes import Axes


class AxesBuilder(Builder):
    part = Axes

    def __init__(self, setup: Setup) -> None:
        self._shifts: dict[int, tuple[np.ndarray, int]] = {}
        """By slot: the result of `compute_shifts`."""

    def applies(self, request: Request) -> bool:
        return any(item.axes is not None for item in request.inputs)

    def enter(self, slot: int, request: Request) -> None:
        self._shifts[slot] = compute_shifts(request)

    def leave(self, slot: int) -> None:
        self._shifts.pop(slot, None)

    def build(self, work: StepRows) -> tuple[Axes | None, int]:
        """After the prompt the shift stays the same, however far a sequence goes."""
        axes = max((prompt.shape[1] for prompt, _ in self._shifts.values()), default=3)  # of one model all have as many
        shift = np.zeros((int(work.query.sum()), axes), np.int32)
        settled = True
        for row, request in work.rows(self.flag):
            prompt, after = self._shifts[request.slot]
            begin, count, first = int(work.context[row]), int(work.query[row]), work.first_token(row)
            known = prompt[begin : begin + count]
            shift[first : first + len(known)] = known
            shift[first + len(known) : first + count] = after
            settled &= not len(known)
        return Axes(shift), FOREVER if settled else 1


def compute_shifts(request: Request) -> tuple[np.ndarray, int]:
    """(i32[prompt, axes], shift): the offset added to the position of each prompt token along each axis, and to that of every
    later token. The tokens after an input continue at `Input.extent` past its first one. No position is negative."""
    axes = next((item.axes.shape[1] for item in request.inputs if item.axes is not None), 3)
    shift, less = np.zeros((request.prompt_len, axes), np.int32), 0
    for item in request.inputs:
        if item.axes is None:
            continue
        first, end = item.span[0] - item.lead, item.span[1] + item.tail
        each = np.arange(end - first, dtype=np.int32)
        shift[first:end] = item.axes - each[:, None] - less
        less += end - first - item.extent
        shift[end:] = -less
    return np.maximum(shift, -np.arange(len(shift), dtype=np.int32)[:, None]), -less
