"""Granite Speech: pairs of spectra as frames, windows of them as vectors."""

from __future__ import annotations

import numpy as np

from thalweg.checkpoint.config import Config, integer
from thalweg.errors import UnsupportedModelError
from thalweg.hal.parts.frames import Frames
from thalweg.hal.step import StepBatch
from thalweg.media.audio_processors.base import AudioProcessor
from thalweg.media.mel import HOP, RATE, WINDOW, spectrum
from thalweg.media.part_batch import make_part_batch
from thalweg.media.processors.base import FILE, outer

F32, I32 = np.float32, np.int32
FFT = 512
LONGEST = 3600.0
SHORTEST = 0.04
"""Seconds. Shorter clips cannot be mirrored at their ends."""


class GraniteSpeechAudio(AudioProcessor, frozen=True, kw_only=True):
    """`chunk` frames of a window give `group` vectors."""

    def frames(self, samples: int) -> int:
        return (samples // HOP + 1) // 2

    def problem(self, samples: int) -> str:
        if samples < SHORTEST * RATE:
            return f"lasts {samples / RATE:.3f} seconds; this model needs at least {SHORTEST:g}"
        return super().problem(samples)

    def count(self, frames: int) -> int:
        return -(-frames // self.chunk) * self.group

    def mel(self, sound: np.ndarray) -> np.ndarray:
        """f32[samples] at RATE -> f32[2 * bins, frames]: the spectrum of each frame's two windows."""
        result = spectrum(sound, self.bins, transform=FFT, htk=True, closed=True)
        frames = self.frames(sound.size)
        return np.ascontiguousarray(result[:, : 2 * frames].T.reshape(frames, 2 * self.bins).T)

    def batch(self, mel: np.ndarray, frames: int) -> StepBatch:
        total = mel.shape[1]
        order = np.arange(total, dtype=I32)
        empty = np.zeros((total, 0), F32)
        frame_part = Frames(
            mel=mel[None], real=np.ones((1, total), F32), row=order, place=order, sines=empty, turn=empty,
            spin=np.zeros((self.count(frames), 0), F32), keep=np.arange(self.count(frames), dtype=I32),
        )  # fmt: skip
        return make_part_batch(frame_part, total)


def granite_speech(config: Config, options: Config) -> GraniteSpeechAudio:
    around = outer(config)
    spectra = options.get("melspec_kwargs")
    spectra = spectra if isinstance(spectra, dict) else {}
    for key, ours in (("sample_rate", RATE), ("hop_length", HOP), ("n_fft", FFT), ("win_length", WINDOW)):
        if spectra.get(key, ours) != ours:
            raise UnsupportedModelError(f"{FILE}: melspec_kwargs: {key}: {spectra[key]!r:.40} is not supported: {ours} is")
    window = integer(around, "window_size", high=1 << 12, default=15)
    rate = integer(around, "downsample_rate", high=window, default=5)
    heard = around.get("encoder_config")
    heard = heard if isinstance(heard, dict) else {}
    return GraniteSpeechAudio(
        token=integer(around, "audio_token_index", low=0, default=around.get("audio_token_id", 49_155)),
        bins=integer(spectra, "n_mels", high=1 << 12, default=80, where=FILE),
        hidden=integer(heard, "hidden_dim", default=1024),
        chunk=window, halvings=0, group=window // rate, most=LONGEST, least=1, ends="short",
    )  # fmt: skip
