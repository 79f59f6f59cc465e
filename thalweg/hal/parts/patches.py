"""Patches of an image: an encoder's step has these, not tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg.hal.fields import Array, Part, dim


@dataclass(slots=True)
class Patches(Part):
    prompts = True
    value: Array = dim("T width", np.float32)  # channels, rows and columns of each patch
    place: Array = dim("T near", np.int32)  # rows of the learned table of places
    share: Array = dim("T near", np.float32)  # how much of each
    turn: Array = dim("T turn", np.float32)  # cosines, then sines, of rotary positions
    keep: Array = dim("kept", np.int32)  # patches of which vectors are made, in the order in which they are merged
    mix: Array = dim("mixed sorts", np.int32)  # vectors that each placeholder's is made of, where it is not the next one
    part: Array = dim("mixed sorts", np.float32)  # how much of each
    window: Array = dim("windows", np.int32)  # patches of each window
    window_seq: Array = dim("T", np.int32)  # window that each patch is in
