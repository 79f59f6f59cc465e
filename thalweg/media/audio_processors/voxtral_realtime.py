"""Voxtral Realtime: silence before and after a clip, and a vector for each token of the sequence, the answer included."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from thalweg.checkpoint.config import Config, integer, section
from thalweg.checkpoint.json_files import read_object
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.hal.parts.frames import Frames
from thalweg.hal.step import StepBatch
from thalweg.media.audio_processors.stream import StreamAudio
from thalweg.media.mel import HOP, RATE, WINDOW, spectrum
from thalweg.media.part_batch import make_part_batch
from thalweg.media.processors.base import outer

F32, I32 = np.float32, np.int32
LONGEST = 1800.0
TOP = 1.5
"""The decimal logarithm that values are clipped relative to, of every clip: later audio changes no earlier frame."""
BEFORE, DELAY = 32, 6
"""Tokens of silence before a clip, and tokens by which the transcript follows it, unless files say otherwise."""
BUFFER = 10
"""Tokens of silence after a clip and its delay: a last word has at most so many (mistral-common)."""
PAD = "[STREAMING_PAD]"
PAD_ID, BOS = 32, 1


class VoxtralRealtimeAudio(StreamAudio, frozen=True, kw_only=True):
    first: int
    """The token that prompts begin with."""
    before: int
    """Tokens of silence before a clip."""
    delay: int
    """Tokens by which the transcript follows the audio."""

    @property
    def start(self) -> tuple[int, ...]:
        """The prompt of a transcript."""
        return (self.first, *(self.token,) * (self.before + self.delay))

    @property
    def step(self) -> int:
        """Samples of one token."""
        return self.chunk * HOP

    def frames(self, samples: int) -> int:
        """With the silence around the clip."""
        return self.chunk * (self.before + -(-samples // self.step) + self.delay + 1 + BUFFER)

    def count(self, frames: int) -> int:
        return frames // self.chunk

    def mel(self, sound: np.ndarray) -> np.ndarray:
        """f32[samples] at RATE -> f32[bins, frames]."""
        wave = np.zeros(self.frames(sound.size) * HOP, F32)
        wave[self.before * self.step :][: sound.size] = sound
        return spectrum(wave, self.bins, top=TOP)

    def live(self, sound: np.ndarray) -> np.ndarray:
        wave = np.concatenate((np.zeros(self.before * self.step, F32), sound.astype(F32)))
        result = spectrum(wave, self.bins, top=TOP)
        known = max(0, (wave.size - WINDOW // 2) // HOP + 1)
        return np.ascontiguousarray(result[:, : known // self.chunk * self.chunk])

    def batch(self, mel: np.ndarray, frames: int) -> StepBatch:
        none, empty = np.zeros(1, I32), np.zeros((1, 0), F32)
        return make_part_batch(Frames(
            mel=mel[None], real=np.ones((1, mel.shape[1]), F32), row=none, place=none, sines=empty, turn=empty,
            spin=np.zeros((self.count(frames), 0), F32), keep=np.arange(frames // 2, dtype=I32),
        ))  # fmt: skip


def voxtral_realtime(config: Config, options: Config, path: Path) -> VoxtralRealtimeAudio:
    around, heard = outer(config), section(outer(config), "audio_config")
    delay = integer(around, "default_num_delay_tokens", low=0, high=1 << 10, default=DELAY)
    chunk = integer(around, "audio_length_per_tok", high=1 << 10, default=8)
    file = read_object(path / "tekken.json") if (path / "tekken.json").is_file() else {}
    stream = file.get("audio") if isinstance(file.get("audio"), dict) else {}
    assert isinstance(stream, dict)
    late = stream.get("transcription_delay_ms")
    if late is not None and _count_tokens(late, chunk) != delay:
        raise UnsupportedModelError(
            f"tekken.json: transcription_delay_ms: {late!r:.40} is not default_num_delay_tokens of config.json, {delay} tokens "
            f"of {chunk * HOP * 1000 // RATE} ms"
        )
    if options.get("global_log_mel_max", TOP) != TOP:
        raise UnsupportedModelError(
            f"global_log_mel_max: {options['global_log_mel_max']!r:.40} is not supported; supported: {TOP}"
        )
    return VoxtralRealtimeAudio(
        token=next(_find_pads(path, file), PAD_ID), bins=integer(heard, "num_mel_bins", high=1 << 12, default=128),
        hidden=integer(heard, "hidden_size", high=1 << 20, default=1280), chunk=chunk, halvings=1, group=chunk // 2,
        most=LONGEST, least=0, ends="silence", prefix=chunk,
        first=integer(config, "bos_token_id", low=0, default=BOS), delay=delay,
        before=integer(stream, "streaming_n_left_pad_tokens", low=0, high=1 << 10, default=BEFORE, where="tekken.json: audio"),
    )  # fmt: skip


def _count_tokens(late: Any, chunk: int) -> int:
    if type(late) not in (int, float) or not 0 <= late < 1e6:
        raise CheckpointError(f"tekken.json: transcription_delay_ms: must be a number of milliseconds, not {late!r:.40}")
    samples = int(late / 1000 * RATE)
    return -(-(samples // HOP) // chunk)


def _find_pads(path: Path, file: dict[str, Any]) -> Iterator[int]:
    """The id of PAD, by the file that names special tokens."""
    for each in file.get("special_tokens") or ():
        if isinstance(each, dict) and each.get("token_str") == PAD and type(each.get("rank")) is int:
            yield each["rank"]
    other = path / "tokenizer.json"
    for each in (read_object(other).get("added_tokens") or ()) if not file and other.is_file() else ():
        if isinstance(each, dict) and each.get("content") == PAD and type(each.get("id")) is int:
            yield each["id"]
