"""Audio input of an encoder: its step has frames, not tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg.hal.fields import Array, Part, dim


@dataclass(slots=True)
class Frames(Part):
    prompts = True
    mel: Array = dim("chunks bins frames", np.float32)  # log-mel spectra, in chunks for the convolutions
    real: Array = dim("chunks frames", np.float32)  # 1 for frames of the audio, 0 for padding of a chunk
    row: Array = dim("T", np.int32)  # rows of the convolutions' output over all chunks, as input of the layers
    place: Array = dim("T", np.int32)  # of each within its chunk
    sines: Array = dim("T sines", np.float32)  # added to each, for models without a learned table of places
    turn: Array = dim("T turn", np.float32)  # cosines, then sines, of rotary positions
    spin: Array = dim("vectors spin", np.float32)  # the same for the vectors made, before the projector's layers
    keep: Array = dim("kept", np.int32)  # rows to make vectors from, neighbours to be concatenated
