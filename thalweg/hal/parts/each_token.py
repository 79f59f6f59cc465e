"""Tokens with a separate result each: vectors of pooling models, or weights of cross attention."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg.hal.fields import Array, Part, dim


@dataclass(slots=True)
class EachToken(Part):
    """The step ends with the model's output for each of these rows, in `StepResult.each`."""

    prompts = True
    row: Array = dim("N", np.int32)  # row in T
