"""Vectors that replace embedded tokens: prompts given as embeddings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg.hal.fields import Array, Part, dim

ENCODED = 64 << 20
"""Bytes of image and audio vectors kept for later requests with the same input."""


@dataclass(slots=True)
class Overlays(Part):
    """The ids of such tokens are placeholders: they must be in the vocabulary, and are not read otherwise."""

    prompts = True
    pick: Array = dim("T", np.int32, fill=-1)  # index in N of each token's vector; -1: the token is embedded
    vector: Array = dim("N hidden", np.float32)  # as the embedding gives them, its scale included
