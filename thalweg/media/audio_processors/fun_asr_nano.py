"""Fun-ASR-Nano: seven of Kaldi's spectra in a frame, and a frame every six."""

from __future__ import annotations

import numpy as np

from thalweg.checkpoint.config import Config, integer
from thalweg.errors import UnsupportedModelError
from thalweg.hal.parts.frames import Frames
from thalweg.hal.step import StepBatch
from thalweg.media.audio_processors.base import AudioProcessor
from thalweg.media.audio_processors.kaldi import kaldi_spectrum
from thalweg.media.mel import HOP, RATE, WINDOW
from thalweg.media.part_batch import make_part_batch
from thalweg.media.processors.base import FILE, outer

F32, I32 = np.float32, np.int32
STACK, STRIDE = 7, 6
"""Spectra in a frame, and from one to the next."""
SHORTEST = RATE // 10
TOKEN = 151_646


class FunAsrNanoAudio(AudioProcessor, frozen=True, kw_only=True):
    def frames(self, samples: int) -> int:
        return -(-((samples - WINDOW) // HOP + 1) // STRIDE)

    def problem(self, samples: int) -> str:
        if samples < SHORTEST:
            return f"lasts {samples / RATE:.3f} seconds; this model needs at least {SHORTEST / RATE:g}"
        return super().problem(samples)

    def count(self, frames: int) -> int:
        return frames

    def mel(self, sound: np.ndarray) -> np.ndarray:
        """f32[samples] at RATE -> f32[STACK * bins, frames]. The first and the last spectrum are repeated beyond the ends."""
        logs = kaldi_spectrum(sound, self.bins, scale=1.0, shape=np.hamming(WINDOW))
        count = self.frames(sound.size)
        at = STRIDE * np.arange(count)[:, None] + np.arange(STACK) - (STACK - 1) // 2
        stacked = logs[at.clip(0, len(logs) - 1)].reshape(count, -1)
        return np.ascontiguousarray(stacked.T, F32)

    def batch(self, mel: np.ndarray, frames: int) -> StepBatch:
        order, empty = np.arange(frames, dtype=I32), np.zeros((frames, 0), F32)
        return make_part_batch(Frames(
            mel=mel[None], real=np.ones((1, frames), F32), row=order, place=order, sines=empty, turn=empty, spin=empty,
            keep=order,
        ), frames)  # fmt: skip


def fun_asr_nano(config: Config, options: Config) -> FunAsrNanoAudio:
    heard = outer(config).get("audio_config")
    heard = heard if isinstance(heard, dict) else {}
    bins = integer(heard, "num_mel_bins", high=1 << 12, default=80)
    ours = {
        "sampling_rate": RATE, "feature_size": bins, "frame_length": 25, "frame_shift": 10, "num_frames_lfr": STACK,
        "stride_lfr": STRIDE, "window": "hamming",
    }  # fmt: skip
    for key, value in ours.items():
        if options.get(key, value) != value:
            raise UnsupportedModelError(
                f"{FILE}: {key}: {options[key]!r:.40} is not supported by this version; supported: {value}"
            )
    if integer(heard, "num_stacked_frames", default=STACK) != STACK:
        raise UnsupportedModelError(f"config.json: audio_config: num_stacked_frames: only {STACK} is supported")
    longest = integer(heard, "max_position_embeddings", low=2, high=1 << 20, default=2049) - 1
    return FunAsrNanoAudio(
        token=integer(outer(config), "audio_token_id", low=0, default=TOKEN), bins=bins,
        hidden=integer(heard, "hidden_size", high=1 << 20, default=512), chunk=1, halvings=0, group=1,
        most=longest * STRIDE * HOP / RATE, least=1, ends="short",
    )  # fmt: skip
