"""Hidden states of another model, as the input of an encoder."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg.hal.fields import Array, Part, dim


@dataclass(slots=True)
class HiddenStates(Part):
    prompts = True
    vector: Array = dim("rows width", np.float32)
