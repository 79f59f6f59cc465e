"""Animations for models of the Qwen-VL families: frames of an animated GIF, each encoded as an image.

Imports no tensor framework: the process of the API and the engine's process both read this file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from thalweg.checkpoint.config import Config, folder
from thalweg.engine.messages import Input
from thalweg.errors import CheckpointError, RequestError
from thalweg.hal.step import StepBatch
from thalweg.host.jobs import TaskLimits
from thalweg.media.decoders.base import MediaDecoder
from thalweg.media.digests import Digests
from thalweg.media.gate import check_size
from thalweg.media.images import Image, to_array
from thalweg.media.kinds.base import READERS, MediaKind, MediaReader, MediaSettings, MediaSource, PartType, read_url
from thalweg.media.kinds.image import IMAGE, make_image_input, write_image
from thalweg.media.processors import QwenVL, token_id
from thalweg.media.processors import processor as image_processor
from thalweg_animation.tasks import FRAMES, PROCESS, WORDS, AnimationTask, Film

MARKER, BETWEEN = "<|video_pad|>", "<|vision_end|><|vision_start|>"
"""What templates write for an animation, between <|vision_start|> and <|vision_end|>, and what stands between its frames."""
MOST_FRAMES = 64
LIMITS = TaskLimits(seconds=10.0, wall=60.0, memory=1 << 30)


class AnimationProcessor(msgspec.Struct, frozen=True):
    """How a model takes animations: as images."""

    images: QwenVL
    marker: str = MARKER

    @property
    def token(self) -> int:
        return self.images.token


class AnimationReader(MediaReader):
    """An animation is a tuple of images, its frames."""

    def __init__(self, processor: AnimationProcessor, settings: MediaSettings) -> None:
        self._images, self._uncut = processor.images, settings.uncut
        self._frames = settings.decoding.get("animation", {}).get("num_frames", FRAMES)
        self._digests = Digests("animation", processor)
        self._decoder: MediaDecoder[AnimationTask, Film] = MediaDecoder(PROCESS, READERS, Film, WORDS)

    def read(self, source: MediaSource, data: bytes) -> tuple[Image, ...]:
        task = AnimationTask(data=data, processor=self._images, frames=self._frames)
        found = []
        for frame in self._decoder.decode(task, source.at, LIMITS, extra=2 * len(data)).frames:
            views = tuple(to_array(picture) for picture in frame.views)
            found.append(Image(views, frame.size, self._digests.of_arrays(frame.size, *views)))
        return tuple(found)

    def count(self, value: tuple[Image, ...]) -> int:
        return sum(self._images.count(frame.size) for frame in value)

    def write_text(self, value: tuple[Image, ...], token_of: Callable[[int], str]) -> str:
        return BETWEEN.join(write_image(self._images, frame.size, token_of) for frame in value)

    def make_inputs(self, value: tuple[Image, ...], positions: np.ndarray) -> list[Input]:
        counts = [self._images.count(frame.size) for frame in value]
        places = [positions[end - n : end] for n, end in zip(counts, accumulate(counts), strict=True)]
        return [make_image_input("animation", self._images, *each, self._uncut) for each in zip(value, places, strict=True)]

    def close(self) -> None:
        self._decoder.close()


class AnimationKind(MediaKind):
    name, plural = "animation", "animations"
    unsupported = "animations are not supported by this model"
    part_types = {"animation_url": PartType("animation_url", "url")}
    encoder = "vision"

    def load_processor(self, config: Config, path: Path) -> AnimationProcessor | None:
        images = image_processor(config, path)
        try:
            token_id(folder(path), MARKER)
        except CheckpointError:  # no such token, so no template writes it
            return None
        return AnimationProcessor(images) if isinstance(images, QwenVL) else None

    def open_reader(self, processor: AnimationProcessor, settings: MediaSettings) -> AnimationReader:
        return AnimationReader(processor, settings)

    def read_part(self, part: Mapping[str, Any], at: str) -> MediaSource:
        return MediaSource(self.name, at, url=read_url(part, "animation_url", at, "data:image/gif;base64,..."))

    def read_object(self, value: Any, at: str, name: str = "") -> MediaSource:
        if isinstance(value, str):
            return MediaSource(self.name, at, url=value)
        if isinstance(value, bytes):
            return MediaSource(self.name, at, data=check_size(value, at))
        raise RequestError(f"{at}: must be a URL or the bytes of a file, not {type(value).__name__}", at)

    def check_decoding(self, given: Mapping[str, Any]) -> list[str]:
        unknown = [f"{key!r:.60} is not known; this version has num_frames" for key in given if key != "num_frames"]
        frames = given.get("num_frames", FRAMES)
        if type(frames) is not int or not 1 <= frames <= MOST_FRAMES:
            unknown.append(f"num_frames must be a whole number from 1 to {MOST_FRAMES}, not {frames!r:.60}")
        return unknown

    def build_batches(self, processor: AnimationProcessor, spec: Any, items: Sequence[Input]) -> tuple[StepBatch, ...]:
        return IMAGE.build_batches(processor.images, spec, items)

    def count_rows(self, processor: AnimationProcessor, item: Input) -> int:
        return IMAGE.count_rows(processor.images, item)


ANIMATION = AnimationKind()
