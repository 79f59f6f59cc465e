"""Clips of models that only transcribe: the encoder reads each at once, and its result is the transcript."""

from __future__ import annotations

import numpy as np

from thalweg.hal.parts.frames import Frames
from thalweg.hal.step import StepBatch
from thalweg.media.audio_processors.base import AudioProcessor
from thalweg.media.mel import RATE
from thalweg.media.part_batch import make_part_batch

F32, I32 = np.float32, np.int32


class ClipAudio(AudioProcessor, frozen=True, kw_only=True):
    """A clip is a prompt, and has one placeholder."""

    whole_prompt: bool = True
    chunk: int = 0
    halvings: int = 0
    group: int = 1
    ends: str = "short"  # type: ignore[assignment]
    stride: int
    """Samples from one of the encoder's frames to the next."""
    shortest: int
    """Samples of the shortest clip."""

    def frames(self, samples: int) -> int:
        """Hundredths of a second."""
        return samples * 100 // RATE

    def problem(self, samples: int) -> str:
        if samples < self.shortest:
            return f"lasts {samples / RATE:.3f} seconds; this model needs at least {self.shortest / RATE:g}"
        return super().problem(samples)

    def count(self, frames: int) -> int:
        return 1

    def batch(self, mel: np.ndarray, frames: int) -> StepBatch:
        none, empty = np.zeros(1, I32), np.zeros((1, 0), F32)
        return make_part_batch(Frames(
            mel=mel[None], real=np.ones((1, mel.shape[1]), F32), row=none, place=none, sines=empty, turn=empty, spin=empty,
            keep=none,
        ))  # fmt: skip
