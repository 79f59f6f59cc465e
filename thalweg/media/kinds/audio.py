"""Audio in conversations: files, URLs and samples in, spectra and placeholders out. `media/audio_processors` has the settings
of each family."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from thalweg.checkpoint.config import Config
from thalweg.engine.messages import Input
from thalweg.errors import RequestError
from thalweg.hal.step import StepBatch
from thalweg.media.audio_decoder import read_samples
from thalweg.media.audio_loader import AudioLoader, ProcessedAudio
from thalweg.media.audio_processors import AudioProcessor, load_audio_processor
from thalweg.media.gate import check_size, decode_base64
from thalweg.media.kinds.base import READERS, MediaKind, MediaReader, MediaSettings, MediaSource, PartType, read_url
from thalweg.media.resample import resample


class AudioReader(MediaReader):
    def __init__(self, kind: str, processor: AudioProcessor, settings: MediaSettings) -> None:
        self._kind, self._processor, self._uncut = kind, processor, settings.uncut
        self._sounds = AudioLoader(processor, READERS)
        self.start, self.numbered = getattr(processor, "start", ()), processor.numbered

    def read(self, source: MediaSource, data: bytes) -> ProcessedAudio:
        if source.samples is not None:
            rate = self._sounds.rate
            return self._sounds.of(resample(source.samples, source.rate or rate, rate), source.at)
        return self._sounds.read(data, source.at)

    def count(self, value: ProcessedAudio) -> int:
        return self._processor.count(value.frames)

    def write_text(self, value: ProcessedAudio, token_of: Callable[[int], str]) -> str:
        edges = self._processor.edges
        before, behind = (token_of(each) for each in edges) if edges else ("", "")
        return f"{before}{token_of(self._processor.token) * self.count(value)}{behind}"

    def make_inputs(self, value: ProcessedAudio, positions: np.ndarray) -> list[Input]:
        return [
            Input(
                kind=self._kind, digest=value.digest, positions=positions, prefix_digests=value.prefix_digests,
                data=(value.mel,), size=(value.frames,), uncut=self._uncut and not self.start,
            )
        ]  # fmt: skip

    def arrange(self, item: Input, ids: Sequence[int], text: str) -> Input:
        return self._processor.arrange(item, ids)

    def close(self) -> None:
        self._sounds.close()


class AudioKind(MediaKind):
    name, plural = "audio", "audio clips"
    unsupported = "audio is not supported by this model"
    part_types = {
        "input_audio": PartType("input_audio", "file"), "audio_url": PartType("audio_url", "url"),
        "audio": PartType("audio", "object"),
    }  # fmt: skip
    encoder = "audio"

    def load_processor(self, config: Config, path: Path) -> AudioProcessor | None:
        return load_audio_processor(config, path)

    def open_reader(self, processor: AudioProcessor, settings: MediaSettings) -> AudioReader:
        return AudioReader(self.name, processor, settings)

    def read_part(self, part: Mapping[str, Any], at: str) -> MediaSource:
        """The format that a request names is ignored: the bytes decide."""
        kind = self.part_types[part["type"]]
        if kind.form == "file":
            found = part.get(kind.field)
            if not isinstance(found, Mapping) or not isinstance(found.get("data"), str):
                raise RequestError(f"{at}.{kind.field}: must have data, the file in base64, and its format", at)
            return MediaSource(self.name, at, data=decode_base64(found["data"], at))
        if kind.form == "url":
            return MediaSource(self.name, at, url=read_url(part, kind.field, at, "data:audio/wav;base64,..."))
        found = next((part[key] for key in ("audio", "audio_url", "url") if part.get(key) is not None), None)
        if found is None:
            raise RequestError(f"{at}: has no audio", at)
        return self.read_object(found, at)

    def read_object(self, value: Any, at: str, name: str = "") -> MediaSource:
        if isinstance(value, str):
            return MediaSource(self.name, at, url=value)
        if isinstance(value, bytes | bytearray):
            return MediaSource(self.name, at, data=check_size(bytes(value), at))
        samples, rate = read_samples(value, at)
        return MediaSource(self.name, at, samples=samples, rate=rate)

    def split_items(self, value: Any) -> Sequence[Any]:
        return value if isinstance(value, list | tuple) and not _is_one(value) else [value]

    def build_batches(self, processor: AudioProcessor, spec: Any, items: Sequence[Input]) -> tuple[StepBatch, ...]:
        (item,) = items
        return (processor.batch(item.data[0], *item.size),)


AUDIO = AudioKind()


def _is_one(given: Sequence[Any]) -> bool:
    """Is this list one recording, and not several?"""
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], int | float | np.integer):
        return True
    return bool(len(given)) and isinstance(given[0], int | float)
