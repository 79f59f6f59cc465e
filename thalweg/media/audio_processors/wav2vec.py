"""Samples for encoders of samples, with mean 0 and variance 1."""

from __future__ import annotations

from math import prod

import numpy as np

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.media.audio_processors.clips import ClipAudio
from thalweg.media.mel import RATE
from thalweg.media.processors.base import FILE

F32 = np.float32
LONGEST = 30.0
"""Seconds that are transcribed at once."""
SHORTEST = RATE // 10
TINY = 1e-7
STRIDES = (5, 2, 2, 2, 2, 2, 2)


class Wav2VecAudio(ClipAudio, frozen=True, kw_only=True):
    normed: bool

    def mel(self, sound: np.ndarray) -> np.ndarray:
        """f32[samples] at RATE -> f32[1, samples]."""
        wave = sound.astype(F32)
        wave = (wave - wave.mean()) / np.sqrt(wave.var() + TINY) if self.normed else wave
        return wave[None].astype(F32)


def wav2vec(config: Config, options: Config) -> Wav2VecAudio:
    for key, ours in (("sampling_rate", RATE), ("feature_size", 1)):
        if options.get(key, ours) != ours:
            raise UnsupportedModelError(
                f"{FILE}: {key}: {options[key]!r:.40} is not supported by this version; supported: {ours}"
            )
    strides = config.get("conv_stride") or [*STRIDES]
    if not isinstance(strides, list) or not all(type(n) is int and 0 < n < 1 << 16 for n in strides):
        raise CheckpointError(f"config.json: conv_stride: must be a list of positive integers, not {strides!r:.80}")
    return Wav2VecAudio(
        token=0, bins=1, hidden=integer(config, "hidden_size", high=1 << 20), most=LONGEST, least=1, stride=prod(strides),
        shortest=SHORTEST, normed=flag(options, "do_normalize", True),
    )  # fmt: skip
