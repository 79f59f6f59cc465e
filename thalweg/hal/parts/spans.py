"""Tokens that see some of those after them: an image's, all of which see each other (Gemma 3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg.hal.fields import Array, Part, dim


@dataclass(slots=True)
class Spans(Part):
    """Such tokens are neighbours in one step, and no later token sees less far than they."""

    prompts = True
    last: Array = dim("T one", np.int32)  # the last position that the token sees, if after its own
