"""From any rate to another: a windowed sinc, in its polyphase form."""

from __future__ import annotations

import math

import numpy as np

CROSSINGS = 24
"""Zero crossings of the sinc on each side."""
BETA = 9.0
"""Of the Kaiser window: 90 dB attenuation in the stopband."""
EDGE = 0.95
"""Of the lower band that passes; the window needs room for its slope."""
ROWS = 1 << 15
"""Outputs computed at once."""


def count_later(rate: int, to: int) -> int:
    """Samples at `rate` behind its own place that a sample of the result depends on."""
    return 0 if rate == to else math.ceil(CROSSINGS / _band(rate, to))


def resample(sound: np.ndarray, rate: int, to: int) -> np.ndarray:
    """f32[samples] at `rate` a second -> f32[ceil(samples * to / rate)]."""
    if rate == to or not sound.size:
        return sound.astype(np.float32, copy=False)
    shared = math.gcd(rate, to)
    up, down = to // shared, rate // shared
    band = _band(rate, to)
    half = math.ceil(CROSSINGS / band)
    count = -(-sound.size * up // down)
    padded = np.concatenate([np.zeros(half, np.float32), sound, np.zeros(half + down + 1, np.float32)], dtype=np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half)
    out = np.empty(count, np.float32)
    offsets = np.arange(-half + 1, half + 1)
    for phase in range(min(up, count)):
        first, rest = divmod(phase * down, up)  # the input before this output, and how far after it that lies
        x = offsets - rest / up
        taps = band * np.sinc(band * x) * _kaiser(x / half)
        taps = (taps / taps.sum()).astype(np.float32)
        mine = out[phase::up]
        for at in range(0, mine.size, ROWS):
            begin = first + 1 + at * down
            rows = min(ROWS, mine.size - at)
            mine[at : at + rows] = windows[begin : begin + (rows - 1) * down + 1 : down] @ taps
    return out


def _band(rate: int, to: int) -> float:
    """The band that passes, as a part of the input's."""
    return EDGE * min(1.0, to / rate)


def _kaiser(x: np.ndarray) -> np.ndarray:
    """The window at x in -1..1."""
    return np.i0(BETA * np.sqrt(np.maximum(0.0, 1 - x * x))) / np.i0(BETA)
