"""Granite Speech 5: pairs of spectra, each with its change over time."""

from __future__ import annotations

import numpy as np

from thalweg.checkpoint.config import Config, integer
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.media.audio_processors.clips import ClipAudio
from thalweg.media.audio_processors.parakeet import encoder_settings
from thalweg.media.mel import HOP, RATE, WINDOW, spectrum
from thalweg.media.processors.base import FILE

F32 = np.float32
FFT, DELTA = 512, 3
LONGEST = 60.0
"""Seconds that are transcribed at once."""
PAIR = 2


class GraniteSpeech5Audio(ClipAudio, frozen=True, kw_only=True):
    def mel(self, sound: np.ndarray) -> np.ndarray:
        """f32[samples] at RATE -> f32[4 * bins, pairs]. The last pair is filled up with silence."""
        frames = PAIR * -(-(sound.size // HOP) // PAIR)
        wave = np.pad(sound.astype(F32), (0, max(0, (frames - 1) * HOP + 1 - sound.size)))
        result = spectrum(wave, self.bins, transform=FFT, htk=True, closed=True, frames=frames)
        around = np.pad(result, ((0, 0), (1, 1)), mode="edge")
        both = np.concatenate((result, (around[:, 2:] - around[:, :-2]) / F32(2)))
        return np.ascontiguousarray(both.T.reshape(frames // PAIR, -1).T, F32)


def halved_layers(encoder: Config) -> tuple[int, ...]:
    """`subsample_layers`: the layers that halve the frames."""
    found = encoder.get("subsample_layers")
    found = [0, 1] if found is None else found
    if not isinstance(found, list) or len(found) > 8 or not all(type(i) is int and i >= 0 for i in found):
        raise CheckpointError(f"config.json: encoder_config: subsample_layers: must be a list of layers, not {found!r:.40}")
    return tuple(sorted(set(found)))


def granite_speech5(config: Config, options: Config) -> GraniteSpeech5Audio:
    encoder = encoder_settings(config)
    bins = integer(encoder, "num_mel_bins", high=1 << 12, default=80)
    ours = {
        "sampling_rate": RATE, "hop_length": HOP, "n_fft": FFT, "win_length": WINDOW, "num_mel_bins": bins,
        "delta_win_length": DELTA, "logmel_floor_db": 8.0,
    }  # fmt: skip
    for key, value in ours.items():
        if options.get(key, value) != value:
            raise UnsupportedModelError(f"{FILE}: {key}: {options[key]!r:.40} is not supported; supported: {value}")
    return GraniteSpeech5Audio(
        token=0, bins=bins, hidden=integer(encoder, "hidden_size", high=1 << 20, default=1024), most=LONGEST, least=1,
        stride=HOP * PAIR * 2 ** len(halved_layers(encoder)), shortest=RATE // 4,
    )  # fmt: skip
