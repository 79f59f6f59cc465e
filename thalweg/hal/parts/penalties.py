"""Repetition, presence and frequency penalties."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg.hal.fields import Array, Part, dim


@dataclass(slots=True)
class Penalties(Part):
    """A row with its values off is unchanged. The step looks back at the history of every row."""

    logits = True
    drafts = True
    repetition: Array = dim("S", np.float32, fill=1)  # 1 = off; counts prompt and output
    presence: Array = dim("S", np.float32)  # 0 = off; counts output only
    frequency: Array = dim("S", np.float32)  # 0 = off; counts output only
    prompt_len: Array = dim("S", np.int32)  # positions at or beyond it are output
