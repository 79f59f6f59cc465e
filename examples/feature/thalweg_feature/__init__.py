"""no_repeat_ngram_size: no run of n tokens is said twice in a sequence, prompt and output. The rule is that of transformers.

Imports no tensor framework: every side of the engine reads this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from thalweg.features import Feature
from thalweg.hal.fields import Array, Part, dim

NAME = "no_repeat_ngram_size"


@dataclass(slots=True)
class NoRepeat(Part):
    """level: the largest size."""

    logits = True
    size: Array = dim("S", np.int32)  # 0 = off


def size(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 32:
        raise ValueError(f"must be an integer between 0 and 32, not {value!r}")
    return value


FEATURE = Feature(
    "thalweg_feature:NoRepeat", "thalweg_feature.builder:NoRepeatBuilder", "thalweg_feature.change:NoRepeatChange",
    arguments={NAME: size},
)  # fmt: skip
