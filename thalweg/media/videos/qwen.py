"""Videos of Qwen-VL and GLM-4V models: two frames are encoded together. Qwen2 and 2.5 show a video as one stretch of positions
with three axes. Later models write the time of each pair before or behind it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from thalweg.checkpoint.config import Config, flag, integer, real, text
from thalweg.errors import UnsupportedModelError
from thalweg.media.processors import Processor
from thalweg.media.processors.base import HALF, outer, read_size, vision
from thalweg.media.processors.cosmos3 import Cosmos3Edge
from thalweg.media.processors.qwen_vl import Glm4v, QwenVL
from thalweg.media.videos.base import FILE, MOST_FRAMES, Frame, VideoFacts, VideoProcessor, linspace, pixels, rate
from thalweg.media.videos.frames import QwenFrame, stack

if TYPE_CHECKING:
    import numpy as np

EDGES = ("shortest_edge", "longest_edge")
DYNAMIC = ((30, 3.0), (300, 1.0), (2400, 0.5))
"""GLM-4.6V: frames of a second, each for half a group, of videos up to so many seconds."""


class QwenVideo(VideoProcessor, frozen=True, kw_only=True):
    """Qwen2-VL and Qwen2.5-VL."""

    least: int = 4
    most: int = MOST_FRAMES
    """Frames, where `fps` decides."""
    speed: float = 0.0
    """Positions along the axis of time to a second. 0: each group is one further."""

    def choose(self, video: VideoFacts) -> list[int]:
        group, total = self.group, video.total
        if self.num_frames is not None:
            count: float = min(round(self.num_frames / group) * group, total)
        else:
            most = min(self.most, total) // group * group
            count = math.floor(min(max(total / video.fps * (self.fps or 2.0), self.least), most, total) / group) * group
        step = total / max(count, 1)
        return [min(int(i * step), total - 1) for i in range(max(int(count), 1))]

    def write_text(self, video: VideoFacts, token_of: Callable[[int], str]) -> str:
        return token_of(self.token) * sum(self.count(video))

    def axes(self, video: VideoFacts) -> list[tuple[np.ndarray, int] | None]:
        """Rows and columns count from the start of the video in each group. The text after it continues behind the longest
        axis, as in the authors' code."""
        import numpy as np

        columns, rows = self.frames.grid(video.size) or (1, 1)
        down, across = np.divmod(np.arange(rows * columns, dtype=np.int32), columns)
        groups = len(self.count(video))
        shown = len(video.chosen) / video.total * video.fps
        step = np.float32(self.speed * self.group / shown) if self.speed else np.float32(1)
        at = [int(np.float32(i) * step) for i in range(groups)]
        after = [0] * (groups - 1) + [max(at[-1] + 1, rows, columns)]
        return [(np.stack([np.full_like(down, t), down, across], 1), n) for t, n in zip(at, after, strict=True)]


class StampedVideo(VideoProcessor, frozen=True, kw_only=True):
    """Qwen3-VL, Qwen3.5 and Cosmos 3: the time of each group of frames stands before it."""

    frames: QwenFrame
    around: tuple[str, str] = ("<|vision_start|>", "<|vision_end|>")
    """Texts before and after a pair."""
    least: int = 4
    most: int = MOST_FRAMES
    """Frames, where `fps` decides."""

    def choose(self, video: VideoFacts) -> list[int]:
        total, count = video.total, self.num_frames
        if count is None:
            count = min(max(int(total / video.fps * (self.fps or 2.0)), self.least), self.most)
        return [round(at) for at in linspace(0, total - 1, min(count, total))]

    def frame(self, count: int) -> Frame:
        return msgspec.structs.replace(self.frames, shown=max(count, self.group))

    def write_text(self, video: VideoFacts, token_of: Callable[[int], str]) -> str:
        times, group, shown = video.times, self.group, token_of(self.token)
        times += [times[-1]] * (-len(times) % group)
        middles = [(times[i] + times[i + group - 1]) / 2 for i in range(0, len(times), group)]
        parts, (start, end) = zip(middles, self.count(video), strict=True), self.around
        return "".join(f"<{at:.1f} seconds>{start}{shown * count}{end}" for at, count in parts)


class GlmVideo(VideoProcessor, frozen=True, kw_only=True):
    """GLM-4.1V and 4.5V: the whole second of each pair of frames stands behind it."""

    frames: QwenFrame
    longest: int = 300
    """Seconds of which `fps` frames are shown each. Of longer videos frames are spread over all."""

    def choose(self, video: VideoFacts) -> list[int]:
        last, fps, seconds = video.total - 1, self.fps or 2.0, video.duration
        if self.num_frames is not None:
            return _even(sorted({round(at) for at in linspace(0, last, min(self.num_frames, video.total))}))
        if seconds <= self.longest:
            found = [min(last, math.ceil(i * video.fps / fps)) for i in range(max(math.floor(seconds * fps), 1))]
        elif (count := int(self.longest * fps)) >= video.total:
            found = list(range(video.total))
        else:
            step = seconds / (count - 1)
            found = [min(last, math.ceil(i * step * video.fps)) for i in range(count)]
        return _even(list(dict.fromkeys(found)))

    def frame(self, count: int) -> Frame:
        return msgspec.structs.replace(self.frames, shown=max(count, self.group))

    def write_text(self, video: VideoFacts, token_of: Callable[[int], str]) -> str:
        parts = zip(video.times[:: self.group], self.count(video), strict=True)
        shown = token_of(self.token)
        return "".join(f"<|begin_of_image|>{shown * n}<|end_of_image|>{self.write_time(at)}" for at, n in parts)

    def write_time(self, seconds: float) -> str:
        return str(int(seconds))


class Glm46Video(GlmVideo, frozen=True, kw_only=True):
    """GLM-4.6V: frames of a second by the length of the video, and times with a decimal."""

    def choose(self, video: VideoFacts) -> list[int]:
        if self.num_frames is not None or self.fps is not None:
            return super().choose(video)
        seconds, total = min(video.duration, DYNAMIC[-1][0]), video.total
        fps = next(rate for most, rate in DYNAMIC if seconds <= most)
        wanted = max(min(int(seconds * fps * self.group), 640), 1)
        found, now = list[int](), 0.0
        if total >= wanted:
            for number in range(total):
                if number * (1 / video.fps) >= now:
                    now += 1 / (self.group * fps)
                    found.append(number)
                    if now >= int(video.duration):
                        break
        if total < wanted or len(found) > wanted:
            found = [int(at) for at in linspace(0, total - 1, wanted)]
        elif len(found) < wanted:
            found = [int(at) for at in linspace(found[0], found[-1], wanted)]
        return _even(list(dict.fromkeys(found)))

    def write_time(self, seconds: float) -> str:
        return f"{seconds:.1f} seconds"


def _even(found: list[int]) -> list[int]:
    """With the last repeated, if their number is odd."""
    return [*found, found[-1]] if len(found) % 2 else found


def _limits(options: Config, least: int, most: int) -> tuple[int, int]:
    """Pixels."""
    size = read_size(options, "size", EDGES, {EDGES[0]: least, EDGES[1]: most})
    return (
        integer(options, "min_pixels", default=size.get(EDGES[0], least), where=FILE),
        integer(options, "max_pixels", default=size.get(EDGES[1], most), where=FILE),
    )


def _check_cap(options: Config) -> None:
    if flag(options, "cap_pixels_per_frame", False):
        raise UnsupportedModelError(f"{FILE}: cap_pixels_per_frame: true is not supported by this version")


def qwen2_vl(config: Config, images: Processor, options: Config) -> QwenVideo:
    assert isinstance(images, QwenVL)
    _check_cap(options)
    least, most = _limits(options, 128 * 28 * 28, 28 * 28 * 768)
    frames = msgspec.structs.replace(images, least=least, most=most, **pixels(options, images))
    return QwenVideo(
        token=integer(outer(config), "video_token_id", low=0, default=151_656), marker="<|video_pad|>", frames=frames,
        group=images.frames, least=integer(options, "min_frames", default=4, where=FILE),
        most=integer(options, "max_frames", high=MOST_FRAMES, default=MOST_FRAMES, where=FILE), **rate(options, None, None),
    )  # fmt: skip


def qwen2_5_vl(config: Config, images: Processor, options: Config) -> QwenVideo:
    return msgspec.structs.replace(
        qwen2_vl(config, images, options), speed=real(vision(config), "tokens_per_second", 0.01, 1e4, default=4.0)
    )


def qwen3_vl(config: Config, images: Processor, options: Config, token: int = 151_656) -> StampedVideo:
    assert isinstance(images, QwenVL)
    _check_cap(options)
    least, most = _limits(options, 128 * 32 * 32, 32 * 32 * 768)
    frame = msgspec.structs.replace(images, least=least, most=most, **pixels(options, images, mean=HALF, std=HALF))
    return StampedVideo(
        token=integer(outer(config), "video_token_id", low=0, default=token),
        marker="<|vision_start|><|video_pad|><|vision_end|>", frames=stack(frame, images.frames), group=images.frames,
        least=integer(options, "min_frames", default=4, where=FILE),
        most=integer(options, "max_frames", high=MOST_FRAMES, default=MOST_FRAMES, where=FILE), **rate(options, None, None),
    )  # fmt: skip


def qwen3_5(config: Config, images: Processor, options: Config) -> StampedVideo:
    return qwen3_vl(config, images, options, token=248_057)


def lfm3_vl(config: Config, images: Processor, options: Config) -> StampedVideo:
    return qwen3_vl(config, images, options, token=125_029)


def cohere_compass(config: Config, images: Processor, options: Config) -> StampedVideo:
    around = ("<|VISION_START|>", "<|VISION_END|>")
    result = qwen3_vl(config, images, options, token=255_032)
    return msgspec.structs.replace(result, around=around, marker=f"{around[0]}<|VIDEO_PAD|>{around[1]}")


def cosmos3_edge(config: Config, images: Processor, options: Config) -> StampedVideo:
    """Each frame is encoded separately, and has its time before it."""
    assert isinstance(images, Cosmos3Edge)
    least, most = _limits(options, 64 * 64, 24 * 1024 * 1024)
    frame = msgspec.structs.replace(images, least=least, most=most, **pixels(options, images))
    return StampedVideo(
        token=integer(outer(config), "video_token_id", low=0, default=18),
        marker="<|vision_start|><|video_pad|><|vision_end|>", frames=stack(frame, 1), **rate(options, None, None),
    )  # fmt: skip


def glm4v(config: Config, images: Processor, options: Config) -> GlmVideo:
    """GLM-4.6V has the architecture of the others, and only its video processor has another name."""
    assert isinstance(images, Glm4v)
    least, most = _limits(options, 112 * 112, 28 * 28 * 2 * 30_000)
    frame = msgspec.structs.replace(images, least=least, most=most, **pixels(options, images))
    newer = text(options, "video_processor_type", "").startswith("Glm46V")
    reported = {} if newer else rate({**options, "num_frames": None}, None, None)
    return (Glm46Video if newer else GlmVideo)(
        token=images.token, marker="<|video|>", frames=stack(frame, images.frames), group=images.frames,
        longest=integer(options, "max_duration", default=300, where=FILE), **reported,
    )  # fmt: skip
