"""Features of a clip for speech encoders that cross-attention reads, by the form of the model (`SpeechConfig.form`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from thalweg.errors import UnsupportedModelError
from thalweg.media.audio_processors import read_settings
from thalweg.media.audio_processors.kaldi import PAIR, kaldi_spectrum, pair_spectra
from thalweg.media.audio_processors.parakeet import EMPHASIS, parakeet_spectrum
from thalweg.media.audio_processors.wav2vec import TINY
from thalweg.media.mel import HOP, RATE, log_mel
from thalweg.media.processors.base import FILE

F32 = np.float32
LEAST = RATE // 10
"""Samples of the shortest clip. Shorter ones end in silence."""
Extractor = Callable[[np.ndarray, int, int], np.ndarray]
"""(f32[samples] at RATE, bins, frames of the longest clip) -> f32[rows, columns], of one shape for a model."""


READ: Mapping[str, Mapping[str, Any]] = {
    "wav2vec": {"do_normalize": True, "sampling_rate": RATE, "feature_size": 1},
    "speech2text": {"do_ceptral_normalize": True, "normalize_means": True, "normalize_vars": True, "sampling_rate": RATE},
    "seamless": {"stride": PAIR, "sampling_rate": RATE},
}
"""Form -> settings of preprocessor_config.json with only one supported value."""


def extract(form: str, wave: np.ndarray, bins: int, frames: int) -> np.ndarray:
    """The features of a clip of at most `frames` hundredths of a second."""
    return EXTRACTORS[form](wave, bins, frames)


def check_settings(form: str, folder: Path) -> None:
    """UnsupportedModelError for settings of features that a form does not read."""
    options = read_settings(folder)
    for key, ours in READ.get(form, {}).items():
        if options.get(key, ours) != ours:
            raise UnsupportedModelError(
                f"{FILE}: {key}: {options[key]!r:.40} is not supported by this version; supported: {ours}"
            )


def _take_samples(wave: np.ndarray, bins: int, frames: int) -> np.ndarray:
    """f32[1, 1 + samples]: the number of samples, and the samples."""
    row = np.zeros((1, 1 + frames * HOP), F32)
    row[0, 0] = max(wave.size, LEAST)
    row[0, 1 : 1 + wave.size] = wave
    return row


def _take_normed(wave: np.ndarray, bins: int, frames: int) -> np.ndarray:
    """The same with mean 0 and variance 1."""
    wave = _lengthen(wave)
    return _take_samples((wave - wave.mean()) / np.sqrt(wave.var() + TINY), bins, frames)


def _parakeet(wave: np.ndarray, bins: int, frames: int) -> np.ndarray:
    return _count(parakeet_spectrum(_lengthen(wave), bins, EMPHASIS), frames)


def _normed_fbank(wave: np.ndarray, bins: int, frames: int) -> np.ndarray:
    """Each frequency has mean 0 and variance 1 over the clip."""
    logs = kaldi_spectrum(_lengthen(wave), bins)
    logs = logs - logs.mean(0)
    spread = logs.std(0)
    return _count((logs / np.where(spread > 0, spread, 1)).T, frames)


def _pair_spectra(wave: np.ndarray, bins: int, frames: int) -> np.ndarray:
    """bins: of both spectra of a frame."""
    return _count(pair_spectra(_lengthen(wave), bins // PAIR), frames // PAIR)


def _lengthen(wave: np.ndarray) -> np.ndarray:
    return np.pad(wave, (0, max(0, LEAST - wave.size)))


def _count(found: np.ndarray, frames: int) -> np.ndarray:
    """f32[bins, 1 + frames]: the number of frames in the first value, and a spectrum behind it."""
    row = np.zeros((len(found), 1 + frames), F32)
    row[0, 0], row[:, 1 : 1 + found.shape[1]] = found.shape[1], found
    return row


EXTRACTORS: Mapping[str, Extractor] = {
    "whisper": log_mel,
    "start": _take_samples,
    "canary": _parakeet,
    "cohere": _parakeet,
    "wav2vec": _take_normed,
    "speech2text": _normed_fbank,
    "seamless": _pair_spectra,
}
