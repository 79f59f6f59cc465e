"""A sound as an encoder takes it: what its step has in place of tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg.hal.fields import Array, Part, dim


@dataclass(slots=True)
class Frames(Part):
    prompts = True
    mel: Array = dim("chunks bins frames", np.float32)  # log-mel spectra, cut into chunks that convolutions see
    real: Array = dim("chunks frames", np.float32)  # 1 for frames of the sound, 0 for what fills a chunk up
    row: Array = dim("T", np.int32)  # of what convolutions give of all chunks: what layers see
    place: Array = dim("T", np.int32)  # of each within its chunk
    sines: Array = dim("T sines", np.float32)  # added to each, of models whose places are no learned table
    turn: Array = dim("T turn", np.float32)  # cosines, then sines, of rotary positions
    spin: Array = dim("vectors spin", np.float32)  # the same of the vectors that are made, before the projector's layers
    keep: Array = dim("kept", np.int32)  # what vectors are made of, neighbours that are joined side by side
