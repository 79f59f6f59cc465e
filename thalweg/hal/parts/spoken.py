"""Text to be spoken, of sequences whose tokens are codes of speech."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg.hal.fields import Array, Part, dim
from thalweg.hal.step import SCRATCH


@dataclass(slots=True)
class SpokenTokens(Part):
    """The step writes them into its state before anything else. Other positions of an entering sequence have the padding."""

    prompts = True
    entering: Array = dim("R", np.int32, fill=SCRATCH)  # slots of sequences with a text
    slot: Array = dim("N", np.int32, fill=SCRATCH)
    position: Array = dim("N", np.int32)
    token: Array = dim("N", np.int32)  # of the text
