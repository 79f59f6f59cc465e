"""Sounds of sequences that begin a stay in this step: what an encoder hears, once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg.hal.fields import Array, Part, dim


@dataclass(slots=True)
class Sounds(Part):
    """The step runs the encoder on each, and writes what cross attention keeps of it to the block of its sequence."""

    prompts = True
    row: Array = dim("sounds", np.int32)  # in S, of the sequence whose sound it is
    mel: Array = dim("sounds bins frames", np.float32)  # log-mel features
