"""Sources of cross attention, of sequences that enter in this step. The encoder reads each once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg.hal.fields import Array, Part, dim


@dataclass(slots=True)
class Sources(Part):
    """The step runs the encoder on each, and writes its keys and values for cross attention to the block of its sequence."""

    prompts = True
    row: Array = dim("sources", np.int32)  # in S, of the sequence that it is the source of
    features: Array = dim("sources bins frames", np.float32)  # as the encoder reads them
