"""Long audio, split at quiet points into windows of the model's length."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

SEARCH = 1.0
"""Seconds at the end of a window that are searched for a quiet point, at most an eighth of the window."""
LENGTH = 0.1
"""Seconds of the quiet stretch: windows are split in its middle."""


class AudioWindow(NamedTuple):
    begin: int
    end: int
    """Samples of the whole clip."""


def windows(sound: np.ndarray, most: int, rate: int) -> list[AudioWindow]:
    """Windows of at most `most` samples, in order, without gaps. A clip of at most `most` samples is one window."""
    out, begin = list[AudioWindow](), 0
    while sound.size - begin > most:
        search = min(most // 8, int(SEARCH * rate))
        end = begin + most
        cut = end - search + _quietest(sound[end - search : end], max(1, int(LENGTH * rate)))
        out.append(AudioWindow(begin, cut))
        begin = cut
    return [*out, AudioWindow(begin, sound.size)]


def _quietest(part: np.ndarray, length: int) -> int:
    """The middle of the stretch with the least energy; of several, the last."""
    if part.size <= length:
        return int(part.size // 2)
    total = np.concatenate([np.zeros(1), np.cumsum(part.astype(np.float64) ** 2)])
    energy = total[length:] - total[:-length]
    least = np.flatnonzero(energy <= energy.min() + 1e-9)[-1]
    return int(least) + length // 2
