"""Spectra on Kaldi's mel scale: of LASR, and in pairs of w2v-BERT."""

from __future__ import annotations

from functools import cache

import numpy as np

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import UnsupportedModelError
from thalweg.media.audio_processors.clips import ClipAudio
from thalweg.media.audio_processors.parakeet import encoder_settings
from thalweg.media.audio_processors.wav2vec import LONGEST, SHORTEST
from thalweg.media.mel import HOP, RATE, WINDOW
from thalweg.media.processors.base import FILE

F32 = np.float32
FFT = 512
LASR_SECONDS = 30.0
"""Seconds that are transcribed at once."""
LASR_FLOOR, LASR_EDGES = 1e-5, (125.0, 7500.0)
PAIR_FLOOR, PAIR_EDGES = 1.192092955078125e-07, (20.0, RATE / 2)
"""The least power, and the lowest and highest frequencies."""
PAIR = 2
"""Spectra in a frame of w2v-BERT."""
EMPHASIS, SCALE, TINY = 0.97, 2.0**15, 1e-7


class LasrAudio(ClipAudio, frozen=True, kw_only=True):
    def mel(self, sound: np.ndarray) -> np.ndarray:
        """f32[samples] at RATE -> f32[bins, frames]: natural logarithms of whole windows."""
        power = _power(sound.astype(np.float64), np.hanning(WINDOW)) @ kaldi_filters(self.bins, *LASR_EDGES)
        return np.ascontiguousarray(np.log(np.maximum(power, LASR_FLOOR)).T, F32)


class PairAudio(ClipAudio, frozen=True, kw_only=True):
    def mel(self, sound: np.ndarray) -> np.ndarray:
        """f32[samples] at RATE -> f32[2 * bins, frames]. Each frequency has mean 0 and variance 1 over the clip. A last
        spectrum without a second one is left out."""
        return pair_spectra(sound, self.bins)


def pair_spectra(sound: np.ndarray, bins: int) -> np.ndarray:
    """f32[samples] at RATE -> f32[2 * bins, frames], as of `PairAudio.mel`."""
    logs = kaldi_spectrum(sound, bins)
    logs = (logs - logs.mean(0)) / np.sqrt(logs.var(0, ddof=1) + TINY)
    count = len(logs) // PAIR
    return np.ascontiguousarray(logs[: count * PAIR].reshape(count, -1).T, F32)


def kaldi_spectrum(sound: np.ndarray, bins: int, *, scale: float = SCALE, shape: np.ndarray | None = None) -> np.ndarray:
    """f32[samples] at RATE -> f64[frames, bins]: natural logarithms of whole windows, as `fbank` of Kaldi computes them.
    scale: of samples. shape: of a window. None: Kaldi's."""
    windows = _windows(sound.astype(np.float64) * scale)
    windows = windows - windows.mean(1, keepdims=True)
    first = windows[:, :1] * (1 - EMPHASIS)
    windows = np.concatenate((first, windows[:, 1:] - EMPHASIS * windows[:, :-1]), 1)
    shape = np.hanning(WINDOW) ** 0.85 if shape is None else shape
    power = np.abs(np.fft.rfft(windows * shape, FFT)) ** 2 @ kaldi_filters(bins, *PAIR_EDGES)
    result: np.ndarray = np.log(np.maximum(power, PAIR_FLOOR))
    return result


def _windows(wave: np.ndarray) -> np.ndarray:
    return np.lib.stride_tricks.sliding_window_view(wave, WINDOW)[::HOP]


def _power(wave: np.ndarray, shape: np.ndarray) -> np.ndarray:
    result: np.ndarray = np.abs(np.fft.rfft(_windows(wave) * shape, FFT)) ** 2
    return result


@cache
def kaldi_filters(bins: int, low: float, high: float) -> np.ndarray:
    """f64[FFT // 2 + 1, bins]: triangles evenly spaced in mel, and straight in it. low, high: in hertz."""

    def mel(hertz: np.ndarray | float) -> np.ndarray:
        return 1127.0 * np.log(1.0 + np.asarray(hertz) / 700.0)

    edges, at = np.linspace(mel(low), mel(high), bins + 2), mel(np.linspace(0.0, RATE / 2, FFT // 2 + 1))[:, None]
    rise, fall = (at - edges[:-2]) / np.diff(edges)[:-1], (edges[2:] - at) / np.diff(edges)[1:]
    result: np.ndarray = np.maximum(0.0, np.minimum(rise, fall))
    result[0] = 0.0
    result.flags.writeable = False
    return result


def lasr(config: Config, options: Config) -> LasrAudio:
    encoder = encoder_settings(config)
    bins = integer(encoder, "num_mel_bins", high=1 << 12, default=128)
    _check(options, hop_length=HOP, n_fft=FFT, win_length=WINDOW, feature_size=bins, sampling_rate=RATE)
    return LasrAudio(
        token=0, bins=bins, hidden=integer(encoder, "hidden_size", high=1 << 20, default=512), most=LASR_SECONDS, least=1,
        stride=HOP * integer(encoder, "subsampling_conv_stride", high=1 << 8, default=2) ** 2, shortest=RATE // 4,
    )  # fmt: skip


def wav2vec2_bert(config: Config, options: Config) -> PairAudio:
    inputs = integer(config, "feature_projection_input_dim", high=1 << 16, default=160)
    _check(options, stride=PAIR, num_mel_bins=inputs // PAIR, sampling_rate=RATE)
    return PairAudio(
        token=0, bins=inputs // PAIR, hidden=integer(config, "hidden_size", high=1 << 20), most=LONGEST, least=1,
        stride=PAIR * HOP * _pooling(config), shortest=SHORTEST,
    )  # fmt: skip


def _pooling(config: Config) -> int:
    """Encoder states in one that the head reads."""
    count = integer(config, "num_adapter_layers", high=100, default=1) if flag(config, "add_adapter", False) else 0
    return int(adapter_stride(config) ** count)


def adapter_stride(config: Config) -> int:
    """Of each layer of w2v-BERT's adapter."""
    return integer(config, "adapter_stride", high=16, default=2)


def _check(options: Config, **ours: int) -> None:
    for key, value in ours.items():
        if options.get(key, value) != value:
            raise UnsupportedModelError(
                f"{FILE}: {key}: {options[key]!r:.40} is not supported by this version; supported: {value}"
            )
