"""Codes of frames that this step computes, but did not sample: of a sequence that is computed again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg.hal.fields import Array, Part, dim
from thalweg.hal.step import SCRATCH


@dataclass(slots=True)
class FrameCodes(Part):
    """The step writes them into its state before anything else."""

    prompts = True
    slot: Array = dim("N", np.int32, fill=SCRATCH)
    position: Array = dim("N", np.int32)
    codes: Array = dim("N books", np.int32)  # after the first, which is the token
