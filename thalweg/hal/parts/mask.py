"""Tokens that are allowed: allowed_token_ids."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg.hal.fields import Array, Part, dim


@dataclass(slots=True)
class Mask(Part):
    logits = True
    allowed: Array = dim("S words", np.uint32, fill=0xFFFFFFFF)  # bit t % 32 of word t // 32: token t; [S, ceil(V / 32)]
