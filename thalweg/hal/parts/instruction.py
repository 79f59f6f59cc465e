"""Text that the encoder of an image reads, too."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg.hal.fields import Array, Part, dim


@dataclass(slots=True)
class Instruction(Part):
    prompts = True
    ids: Array = dim("words", np.int32)  # of the encoder's vocabulary
