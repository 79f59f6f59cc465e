"""Tokens of which a pooling model gives each a result of its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg.hal.fields import Array, Part, dim


@dataclass(slots=True)
class EachToken(Part):
    """The step ends with what the model makes of each of these rows, in `StepResult.each`."""

    prompts = True
    row: Array = dim("N", np.int32)  # row in T
