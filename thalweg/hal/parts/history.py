"""Tokens that this step does not compute, but later ones look back at: a prompt's cached prefix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg.hal.fields import Array, Part, dim
from thalweg.hal.step import SCRATCH


@dataclass(slots=True)
class History(Part):
    """The step writes them into the history before anything else."""

    prompts = True
    slot: Array = dim("N", np.int32, fill=SCRATCH)
    position: Array = dim("N", np.int32)
    token: Array = dim("N", np.int32)
