"""Log probabilities of prompt tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg.hal.fields import Array, Part, dim


@dataclass(slots=True)
class Scores(Part):
    """The next token of these rows is known. level: how many of the most likely tokens are returned with it."""

    prompts = True
    row: Array = dim("N", np.int32)  # row in T
    target: Array = dim("N", np.int32)  # the next token
