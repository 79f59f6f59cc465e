"""Videos: files and URLs in, frames and placeholders out. `media/videos` has the settings of each family."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from thalweg.checkpoint.config import Config
from thalweg.engine.messages import Input
from thalweg.errors import RequestError
from thalweg.hal.step import StepBatch
from thalweg.host.jobs import TaskLimits
from thalweg.media.cache import MediaCache
from thalweg.media.decoders.base import MediaDecoder
from thalweg.media.decoders.video import PROCESS, WORDS, DecodedVideo, VideoTask
from thalweg.media.digests import Digests
from thalweg.media.gate import check_size
from thalweg.media.images import to_array
from thalweg.media.kinds.base import READERS, MediaKind, MediaReader, MediaSettings, MediaSource, PartType, read_url
from thalweg.media.kinds.image import add_text, compute_axes, pack_batches
from thalweg.media.videos import AnyVideo, VideoFacts, load_video_processor
from thalweg.media.videos.base import MOST_FRAMES

LIMITS = TaskLimits(seconds=30.0, wall=120.0, memory=1536 << 20)


class Video(msgspec.Struct, frozen=True):
    """A processed video. groups: u8[height, width, 3] of frames encoded together."""

    facts: VideoFacts
    groups: tuple[tuple[np.ndarray, ...], ...]

    @property
    def nbytes(self) -> int:
        return sum(frame.nbytes for group in self.groups for frame in group)


class VideoReader(MediaReader):
    def __init__(self, kind: str, processor: AnyVideo, settings: MediaSettings) -> None:
        self._kind, self._uncut, frames = kind, settings.uncut, processor.frames
        self.single, self.bare, self.reads_text = frames.single, frames.bare, frames.reads_text
        self._processor: AnyVideo = processor.with_rate(settings.decoding.get(kind, {}))
        self._digests = Digests(kind, self._processor)
        self._kept: MediaCache[Video] = MediaCache(settings.kept_bytes)
        self._decoder: MediaDecoder[VideoTask, DecodedVideo] = MediaDecoder(PROCESS, READERS, DecodedVideo, WORDS)

    def read(self, source: MediaSource, data: bytes) -> Video:
        key = self._digests.of_bytes(data) + repr(sorted(source.decoding.items())).encode()
        found = self._kept.get(key)
        if found is None:
            found = self._decode(source, data)
            self._kept.put(key, found)
        return found

    def _decode(self, source: MediaSource, data: bytes) -> Video:
        at, processor = source.at, self._processor.with_rate(source.decoding)
        task = VideoTask(data=data, processor=processor)
        found = self._decoder.decode(task, at, LIMITS, extra=2 * len(data))
        frames, group = [to_array(each) for each in found.frames], self._processor.group
        frames += frames[-1:] * (-len(frames) % group)
        return Video(found.facts, tuple(tuple(frames[i : i + group]) for i in range(0, len(frames), group)))

    def count(self, value: Video) -> int:
        return sum(self._processor.count(value.facts))

    def write_text(self, value: Video, token_of: Callable[[int], str]) -> str:
        return self._processor.write_text(value.facts, token_of)

    def make_inputs(self, value: Video, positions: np.ndarray) -> list[Input]:
        """One for each group of frames: they are encoded and cached one by one."""
        p, facts = self._processor, value.facts
        frame, counts = p.frame(len(facts.chosen)), p.count(facts)
        result = []
        parts = zip(value.groups, counts, accumulate(counts), p.axes(facts), p.facts(facts), strict=True)
        for views, count, end, options, size in parts:
            own = positions[end - count : end]
            axes, extent = options or compute_axes(frame, facts.size, own)
            first = None if axes is None else axes[0].tolist()
            digest = self._digests.of_arrays((size, first, extent), *views)
            result.append(
                Input(
                    kind=self._kind, digest=digest, positions=own, data=views, size=size, uncut=self._uncut,
                    bidirectional=frame.together, axes=axes, extent=extent,
                )
            )  # fmt: skip
        return result

    def complete(self, prompt: str) -> str:
        return self._processor.complete(prompt)

    def arrange(self, item: Input, ids: Sequence[int], text: str) -> Input:
        """Frames share the text of a prompt."""
        return add_text(self._processor.frames, item, text) if self.reads_text else item

    def forget(self) -> None:
        self._kept.clear()

    def close(self) -> None:
        self._decoder.close()


class VideoKind(MediaKind):
    name, plural = "video", "videos"
    unsupported = "videos are not supported by this model"
    part_types = {"video_url": PartType("video_url", "url"), "video": PartType("video", "object")}
    encoder = "vision"
    settable = per_request = True

    def load_processor(self, config: Config, path: Path) -> AnyVideo | None:
        return load_video_processor(config, path)

    def open_reader(self, processor: AnyVideo, settings: MediaSettings) -> VideoReader:
        return VideoReader(self.name, processor, settings)

    def read_part(self, part: Mapping[str, Any], at: str) -> MediaSource:
        if self.part_types[part["type"]].form == "url":
            return MediaSource(self.name, at, url=read_url(part, "video_url", at, "data:video/mp4;base64,..."))
        found = part.get("video", part.get("url"))
        if found is None:
            raise RequestError(f"{at}: has no video", at)
        return self.read_object(found, at)

    def read_object(self, value: Any, at: str, name: str = "") -> MediaSource:
        if isinstance(value, str):
            return MediaSource(self.name, at, url=value)
        if isinstance(value, bytes | bytearray):
            return MediaSource(self.name, at, data=check_size(bytes(value), at))
        raise RequestError(f"{at}: must be a URL or the bytes of a file, not {type(value).__name__}", at)

    def check_decoding(self, given: Mapping[str, Any]) -> list[str]:
        problems = []
        for key, value in given.items():
            if key == "num_frames":
                if type(value) is not int or not 1 <= value <= MOST_FRAMES:
                    problems.append(f"num_frames must be a whole number from 1 to {MOST_FRAMES}, not {value!r:.60}")
            elif key == "fps":
                if type(value) not in (int, float) or not 0.01 <= value <= 240:
                    problems.append(f"fps must be a number from 0.01 to 240, not {value!r:.60}")
            else:
                problems.append(f"{key!r:.60} is not known; this version has num_frames and fps")
        if "num_frames" in given and "fps" in given:
            problems.append("num_frames and fps exclude each other")
        return problems

    def is_bidirectional(self, processor: AnyVideo) -> bool:
        return processor.frames.together

    def build_batches(self, processor: AnyVideo, spec: Any, items: Sequence[Input]) -> tuple[StepBatch, ...]:
        return pack_batches(spec, [processor.preprocess(item.data, item.size) for item in items])

    def count_rows(self, processor: AnyVideo, item: Input) -> int | None:
        if processor.frames.separate:
            return None
        height, width = (edge // processor.frames.patch for edge in item.data[0].shape[:2])
        return int(height * width)


VIDEO = VideoKind()
