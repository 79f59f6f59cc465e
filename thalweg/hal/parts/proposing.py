"""A step that proposes drafts too: those that a later step verifies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg.hal.fields import Array, Part, dim


@dataclass(slots=True)
class Proposing(Part):
    """The step ends with the engine's proposer (`models.proposer`). A step without this part has no such tail.

    level: drafts of a sequence, as many as every step proposes."""

    fresh: Array = dim("S", np.bool_, fill=1)
    """bool[S]: the proposer starts without state, as that of the slot ends before this step's tokens, or is another sequence's.
    """
    room: Array = dim("S", np.int32)
    """i32[S]: tokens that fit in the sequence's blocks. Entries of its block table behind them may be of other sequences."""
