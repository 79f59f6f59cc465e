"""Spectra of NVIDIA's speech models: pre-emphasis, natural logarithms, and each frequency normalised over the clip."""

from __future__ import annotations

import msgspec
import numpy as np

from thalweg.checkpoint.config import Config, integer, real
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.media.audio_processors.clips import ClipAudio
from thalweg.media.mel import HOP, RATE, WINDOW, mel_filters
from thalweg.media.processors.base import FILE

F32 = np.float32
FFT = 512
EMPHASIS = 0.97
GUARD = 2.0**-24
EPSILON = 1e-5
LONGEST = 60.0
"""Seconds that are transcribed at once."""
SHORTEST = RATE // 10
FRAMES = 3000
"""Windows transformed at once."""


class ParakeetAudio(ClipAudio, frozen=True, kw_only=True):
    emphasis: float
    """Share of the sample before that is subtracted."""
    normed: bool = True
    """Each frequency has mean 0 and variance 1 over the clip."""

    def mel(self, sound: np.ndarray) -> np.ndarray:
        """f32[samples] at RATE -> f32[bins, samples // HOP]."""
        return parakeet_spectrum(sound, self.bins, self.emphasis, self.normed)


def parakeet_spectrum(sound: np.ndarray, bins: int, emphasis: float, normed: bool = True) -> np.ndarray:
    """f32[samples] at RATE -> f32[bins, samples // HOP]. Silence is before and behind the clip."""
    frames = sound.size // HOP
    wave = sound.astype(F32)
    wave = np.concatenate([wave[:1], wave[1:] - F32(emphasis) * wave[:-1]]) if emphasis else wave
    padded = np.pad(wave, WINDOW // 2)
    windows = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP][:frames]
    shape, filters = np.hanning(WINDOW), mel_filters(bins, FFT, False)
    power = np.concatenate([
        (np.abs(np.fft.rfft(windows[at : at + FRAMES] * shape, FFT)) ** 2) @ filters for at in range(0, frames, FRAMES)
    ])  # fmt: skip
    logs = np.log(power + GUARD)
    result = (logs - logs.mean(0)) / (logs.std(0, ddof=1) + EPSILON) if normed else logs
    return np.ascontiguousarray(result.T, F32)


def encoder_settings(config: Config) -> Config:
    """`encoder_config`. CheckpointError if there is none."""
    encoder = config.get("encoder_config")
    if not isinstance(encoder, dict):
        raise CheckpointError("config.json: encoder_config: missing")
    return encoder


def parakeet(config: Config, options: Config) -> ParakeetAudio:
    encoder = encoder_settings(config)
    bins = integer(encoder, "num_mel_bins", high=1 << 12, default=80)
    ours = (("sampling_rate", RATE), ("hop_length", HOP), ("n_fft", FFT), ("win_length", WINDOW), ("feature_size", bins))
    for key, value in ours:
        if options.get(key, value) != value:
            raise UnsupportedModelError(
                f"{FILE}: {key}: {options[key]!r:.40} is not supported by this version; supported: {value}"
            )
    return ParakeetAudio(
        token=0, bins=bins, hidden=integer(encoder, "hidden_size", high=1 << 20, default=1024), most=LONGEST, least=1,
        stride=HOP * integer(encoder, "subsampling_factor", high=1 << 8, default=8), shortest=SHORTEST,
        emphasis=0.0 if options.get("preemphasis", 0) is None else real(options, "preemphasis", 0, 1, default=EMPHASIS),
    )  # fmt: skip


def nemotron_asr(config: Config, options: Config) -> ParakeetAudio:
    if options.get("mel_filters_dtype", "float32") != "float32":
        raise UnsupportedModelError(f"{FILE}: mel_filters_dtype: only float32 is supported by this version")
    return msgspec.structs.replace(parakeet(config, options), normed=False)
