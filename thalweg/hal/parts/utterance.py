"""Input of a network that speaks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg.hal.fields import Array, Part, dim


@dataclass(slots=True)
class Utterance(Part):
    prompts = True
    units: Array = dim("rows books", np.int32)  # characters of a text, or a codec's codes of each frame
    speed: Array = dim("one", np.float32)  # 1: as trained
    voice: Array = dim("one", np.int32)  # number of the speaker
    seed: Array = dim("one 2", np.int32)  # low and high words
