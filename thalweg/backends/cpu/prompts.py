"""Short prompts in a form that recorded steps can serve: chunks of one sequence, filled up to lengths that come again.

The tokens that fill a chunk up are later ones of the same sequence. They are written like rejected drafts: later steps
write their positions again before any token sees them. Whether a step allows this, it says itself (`hal.step.appendable`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from thalweg.hal.fields import Part, dims, grown
from thalweg.hal.step import SCRATCH, StepBatch

EVERY = 8
"""Tokens by which the lengths of filled chunks differ."""
MOST = 256
"""Tokens of a filled chunk, at most: the arithmetic of longer ones hides the Python between their kernels."""


def fill_chunk(batch: StepBatch, longest: int) -> StepBatch | None:
    """The batch of a prompt's chunk with tokens up to a multiple of EVERY behind those it has. `query`, `last_row` and
    `context` stay. longest: tokens of a sequence, at most. None: the batch has several sequences, or arrays by token or plans
    that would have to follow."""
    t = batch.tokens.shape[0]
    want = -(-t // EVERY) * EVERY
    if batch.uniform or want > MOST or batch.slots.shape[0] != 1 or batch.slots[0] == SCRATCH:
        return None
    if batch.context[0] + want > longest or any(batch.metadata) or any(map(_follows_tokens, batch.parts)):
        return None
    wide = {"T": want, "B": max(table.shape[1] for table in batch.block_tables) + EVERY - 1}
    filled = grown(batch, wide)
    filled.positions = np.arange(want, dtype=np.int32) + batch.context
    return filled


def _follows_tokens(part: Part) -> bool:
    """Does it have an array by token?"""
    declared: Mapping[str, Any] = dims(type(part))
    return any("T" in d.axes for d in declared.values())
