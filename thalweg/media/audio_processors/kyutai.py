"""Kyutai speech to text: samples for its codec, with silence before and after a clip."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np

from thalweg.checkpoint.config import Config, integer, real
from thalweg.checkpoint.json_files import read_object
from thalweg.errors import UnsupportedModelError
from thalweg.hal.parts.frames import Frames
from thalweg.hal.step import StepBatch
from thalweg.media.audio_processors.stream import StreamAudio
from thalweg.media.part_batch import make_part_batch
from thalweg.media.processors.base import FILE

F32, I32 = np.float32, np.int32
LONGEST = 1800.0
"""Seconds. A context has room for less."""
BEHIND = 1.0
"""Seconds of silence after a clip, in addition to its delay, as of transformers' feature extractor."""


class KyutaiAudio(StreamAudio, frozen=True, kw_only=True):
    """A frame is a sample. The first token reads no audio: a step of zeros is in front of the samples, and the token after it
    reads the first step of audio."""

    first: int
    """The token that prompts begin with."""
    before: int
    """Samples of silence before a clip."""
    behind: int
    """Samples of silence after it."""

    @property
    def start(self) -> tuple[int, ...]:
        return (self.first,)

    @property
    def step(self) -> int:
        return self.chunk

    def frames(self, samples: int) -> int:
        """With the silence around the clip and the step of zeros. Each whole step yields a token."""
        return (1 + (self.before + samples + self.behind) // self.step) * self.step

    def count(self, frames: int) -> int:
        return frames // self.step

    def mel(self, sound: np.ndarray) -> np.ndarray:
        """f32[samples] at `rate` -> f32[1, frames]."""
        wave = np.zeros(self.step + self.before + sound.size + self.behind, F32)
        wave[self.step + self.before :][: sound.size] = sound
        return wave[None, : self.frames(sound.size)]

    def live(self, sound: np.ndarray) -> np.ndarray:
        size = (self.step + self.before + sound.size) // self.step * self.step
        wave = np.zeros(self.step + self.before + sound.size, F32)
        wave[self.step + self.before :] = sound
        return wave[None, :size]

    def batch(self, mel: np.ndarray, frames: int) -> StepBatch:
        none, empty = np.zeros(1, I32), np.zeros((1, 0), F32)
        return make_part_batch(Frames(
            mel=mel[None], real=np.ones((1, mel.shape[1]), F32), row=none, place=none, sines=empty, turn=empty,
            spin=np.zeros((self.count(frames), 0), F32), keep=none,
        ))  # fmt: skip


def kyutai(config: Config, options: Config, path: Path) -> KyutaiAudio:
    codec = config.get("codec_config")
    assert isinstance(codec, dict), "the family has checked it"
    rate = integer(codec, "sampling_rate", 1000, 768_000, default=24_000)
    for key, ours in (("sampling_rate", rate), ("feature_size", 1), ("chunk_length_s", None)):
        if options.get(key, ours) != ours:
            raise UnsupportedModelError(
                f"{FILE}: {key}: {options[key]!r:.40} is not supported for this model; supported: {ours}"
            )
    before, delay = (
        real(options, f"audio_{key}_seconds", 0, 600, default=0.0, where=FILE) for key in ("silence_prefix", "delay")
    )
    token = integer(config, "pad_token_id", low=0, default=3)
    vocab, first = integer(config, "vocab_size", default=4001), integer(config, "bos_token_id", low=0, default=48_000)
    return KyutaiAudio(
        rate=rate, token=token, bins=1, hidden=integer(codec, "hidden_size", high=1 << 20, default=512),
        chunk=_count_samples(codec, rate), halvings=0, group=1, most=LONGEST, least=0, ends="silence",
        prefix=_count_samples(codec, rate), first=first if first < vocab else token, before=int(before * rate),
        behind=int((delay + BEHIND) * rate), ended=_names_end(config, path),
    )  # fmt: skip


def _names_end(config: Config, path: Path) -> bool:
    """Not by the tokenizer, whose end of text transformers ignores."""
    file = path / "generation_config.json"
    named = read_object(file).get("eos_token_id") if file.is_file() else None
    return named is not None or config.get("eos_token_id") is not None


def _count_samples(codec: Config, rate: int) -> int:
    """Samples of a frame, as of the codec's declaration (`families.towers.mimi`)."""
    hop = prod(codec.get("upsampling_ratios") or (8, 6, 5, 4))
    frames = codec.get("frame_rate") or codec.get("_frame_rate")
    places = -(-rate // hop)
    return hop * (2 if frames is None else round(places / frames))
