"""The audio gate: bytes of a file in, samples out. Decoding runs in a sandboxed process with limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from thalweg.errors import RequestError
from thalweg.host.jobs import TaskLimits
from thalweg.media.decoders.audio import PROCESS, WORDS, AudioTask, Samples
from thalweg.media.decoders.base import MediaDecoder
from thalweg.media.mel import RATE
from thalweg.media.resample import resample

MEMORY = 768 << 20
"""Bytes that decoding may use, beyond the idle process."""
SAMPLES_PER_SECOND = 48_000
"""Rate at which the longest accepted clip is counted. Clips at higher rates must be proportionally shorter."""
CPU_SECONDS, WALL = 30.0, 120.0
PARAM = "file"


class AudioDecoder:
    """Up to `cells` processes that decode. Thread-safe. They start when first needed, and end with this object."""

    def __init__(self, cells: int = 1, most_seconds: float = 600.0) -> None:
        self._most_seconds = most_seconds
        self._decoder: MediaDecoder[AudioTask, Samples] = MediaDecoder(PROCESS, cells, Samples, WORDS)
        self.prepare, self.close, self.pids = self._decoder.prepare, self._decoder.close, self._decoder.pids

    def decode(self, data: bytes, rate: int = RATE, at: str = PARAM) -> np.ndarray:
        """f32[samples] of one channel at `rate`. at: the place in the request. RequestError names the fault of the file.
        UnavailableError: the process was lost and the file is not to blame."""
        if not data:
            raise RequestError(f"{at}: it is empty", at)
        most = int(self._most_seconds * SAMPLES_PER_SECOND)
        task = AudioTask(data, rate, self._most_seconds, most)
        result = self._decoder.decode(task, at, TaskLimits(CPU_SECONDS, WALL, MEMORY))
        return np.frombuffer(result.samples, np.float32)


def samples_of(given: Any, param: str) -> np.ndarray:
    """As `read_samples`, at RATE."""
    wave, rate = read_samples(given, param)
    return resample(wave, rate or RATE, RATE)


def read_samples(given: Any, param: str) -> tuple[np.ndarray, int]:
    """(f32[n] of one channel, samples per second) of samples that a caller of Python has: (samples, rate), or samples, whose
    rate is 0 here: that of the model. Several channels are [channels, n] or [n, channels]. RequestError."""
    rate = 0
    if isinstance(given, tuple | list) and len(given) == 2 and isinstance(given[1], int | float | np.integer):
        given, rate = given[0], int(given[1]) or -1
    if hasattr(given, "detach"):  # a tensor of torch, which is not imported here
        given = given.detach().float().cpu().numpy()
    if isinstance(given, Sequence) and not isinstance(given, str | bytes):
        try:
            given = np.asarray(given, np.float32)
        except (TypeError, ValueError):
            raise RequestError(f"{param} must be samples, or (samples, rate)", param) from None
    if not isinstance(given, np.ndarray) or given.dtype.kind not in "fiu" or given.ndim not in (1, 2) or not given.size:
        raise RequestError(f"{param} must be samples, or (samples, rate), not {type(given).__name__}", param)
    if rate and not 1_000 <= rate <= 768_000:
        raise RequestError(f"{param}: {rate} samples a second; 1000 to 768000 are taken", param)
    wave = given.astype(np.float32)
    if given.dtype.kind in "iu":
        wave = wave / np.float32(np.iinfo(given.dtype).max)
    if wave.ndim == 2:
        wave = wave.mean(int(np.argmin(wave.shape)))
    if not np.isfinite(wave).all():
        raise RequestError(f"{param} holds NaN or inf", param)
    return wave, rate
