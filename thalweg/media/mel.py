"""Log-mel spectra as Whisper was trained on them (Radford et al. 2022, https://arxiv.org/abs/2212.04356): windows of 25 ms
every 10 ms, Slaney's mel scale up to half of the rate."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

RATE = 16_000
"""Samples a second."""
WINDOW, HOP = 400, 160
"""Samples of a window, and from one to the next."""
FLOOR = 1e-10
RANGE = 8.0
"""Decades below the maximum that are kept; lower values are clipped."""
KNEE, STEP = 1000.0, np.log(6.4) / 27
"""The mel scale is linear up to this frequency, 15 mel, and logarithmic from there on."""
FRAMES = 3000
"""Windows transformed at once."""


class LogMel(NamedTuple):
    """A precomputed spectrum: f32[bins, frames]."""

    values: np.ndarray


def log_mel(sound: np.ndarray, bins: int, frames: int) -> np.ndarray:
    """f32[samples] at RATE, in -1..1 -> f32[bins, frames]. Shorter clips are padded with silence, longer ones truncated."""
    samples = frames * HOP
    wave = np.zeros(samples, np.float32)
    wave[: min(samples, sound.size)] = sound[:samples]
    return spectrum(wave, bins)


def spectrum(
    wave: np.ndarray,
    bins: int,
    *,
    transform: int = WINDOW,
    htk: bool = False,
    closed: bool = False,
    top: float | None = None,
    frames: int = 0,
) -> np.ndarray:
    """f32[samples], more than half of a window -> f32[bins, samples // HOP]. transform: points of the Fourier transform, of
    windows with zeros behind them. htk: the mel scale is HTK's, and filters are not of the same area but of the same height.
    closed: one more window, at the end. top: the decimal logarithm that values are clipped
    relative to. None: the clip's maximum. frames: at most so many windows. 0: all."""
    frames = frames or wave.size // HOP + closed
    # Windows are centred on multiples of HOP: samples before the first are mirrored.
    padded = np.pad(wave, WINDOW // 2, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP][:frames]
    shape = np.hanning(WINDOW + 1)[:-1]
    filters = mel_filters(bins, transform, htk)
    power = np.concatenate([
        (np.abs(np.fft.rfft(windows[at : at + FRAMES] * shape, transform)) ** 2) @ filters for at in range(0, frames, FRAMES)
    ])  # fmt: skip
    logs = np.log10(np.maximum(power.T, FLOOR))
    logs = np.maximum(logs, (logs.max() if top is None else top) - RANGE)
    return np.ascontiguousarray((logs + 4.0) / 4.0, np.float32)


@cache
def mel_filters(bins: int, transform: int, htk: bool) -> np.ndarray:
    """f64[transform // 2 + 1, bins]: triangles evenly spaced in mel."""
    if htk:
        edges = 700 * (10 ** (np.linspace(0.0, 2595 * np.log10(1 + RATE / 1400), bins + 2) / 2595) - 1)
    else:
        edges = _hertz(np.linspace(0.0, _mel(RATE / 2), bins + 2))
    at = np.linspace(0.0, RATE / 2, transform // 2 + 1)[:, None]
    rise, fall = (at - edges[:-2]) / np.diff(edges)[:-1], (edges[2:] - at) / np.diff(edges)[1:]
    result: np.ndarray = np.maximum(0.0, np.minimum(rise, fall)) * (1.0 if htk else 2.0 / (edges[2:] - edges[:-2]))
    result.flags.writeable = False
    return result


def _mel(hertz: float) -> float:
    return 3 * hertz / 200 if hertz < KNEE else 15 + float(np.log(hertz / KNEE)) / float(STEP)


def _hertz(mel: np.ndarray) -> np.ndarray:
    return np.where(mel < 15, mel * 200 / 3, KNEE * np.exp(STEP * (np.maximum(mel, 15) - 15)))
