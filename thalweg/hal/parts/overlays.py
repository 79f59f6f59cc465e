"""Vectors in place of embedded tokens: prompts that are given as embeddings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg.hal.fields import Array, Part, dim

ENCODED = 64 << 20
"""Bytes of vectors of images and sounds that are kept for later requests with the same."""


@dataclass(slots=True)
class Overlays(Part):
    """The ids of such tokens are placeholders. Nothing is read of them but that they are in the vocabulary."""

    prompts = True
    pick: Array = dim("T", np.int32, fill=-1)  # index in N of each token's vector; -1: the token is embedded
    vector: Array = dim("N hidden", np.float32)  # as the embedding gives them, its scale included
