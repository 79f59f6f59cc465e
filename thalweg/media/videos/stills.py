"""Videos of models that encode each frame as a picture: InternVL, LLaVA-OneVision, SmolVLM and Gemma 4."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

import msgspec

from thalweg.checkpoint.config import Config, integer
from thalweg.errors import CheckpointError
from thalweg.media.processors import Processor
from thalweg.media.processors.base import ImageProcessor, only, outer, read_edges, read_size
from thalweg.media.processors.gemma4 import Gemma4
from thalweg.media.processors.idefics3 import Idefics3
from thalweg.media.processors.instructblip import InstructBlip
from thalweg.media.processors.llava_next import LlavaNext
from thalweg.media.processors.perception_lm import PerceptionLM
from thalweg.media.processors.tiles import TiledImages
from thalweg.media.videos.base import FILE, VideoFacts, VideoProcessor, clock, linspace, pixels, rate
from thalweg.media.videos.frames import LlavaFrame

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs

FRAMES = 32
"""Frames where neither the request nor the model's files say how many."""
ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
    "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


class UniformVideo(VideoProcessor, frozen=True, kw_only=True):
    """Frames at equal distances from the first on."""

    def choose(self, video: VideoFacts) -> list[int]:
        count = self.num_frames
        if count is None:
            count = FRAMES if self.fps is None else int(video.total / video.fps * self.fps)
        count = min(max(count, 1), video.total)
        return [i * video.total // count for i in range(count)]


class InternVLVideo(UniformVideo, frozen=True, kw_only=True):
    """Frames from the middles of as many equal parts."""

    def choose(self, video: VideoFacts) -> list[int]:
        count = len(super().choose(video))
        step = video.total / count
        return [min(int(step / 2 + i * step), video.total - 1) for i in range(count)]

    def write_text(self, video: VideoFacts, token_of: Callable[[int], str]) -> str:
        token = token_of(self.token)
        return "\n".join(f"Frame{i}: <img>{token * n}</img>" for i, n in enumerate(self.count(video), 1))


class LlavaVideo(UniformVideo, frozen=True, kw_only=True):
    """The last frame is followed by the learned vector of an end of a row."""

    frames: LlavaFrame

    def count(self, video: VideoFacts) -> list[int]:
        counts = super().count(video)
        return [*counts[:-1], counts[-1] + 1]

    def facts(self, video: VideoFacts) -> list[tuple[int, ...]]:
        """The third number of the last frame is 1."""
        return [*((*video.size, 0) for _ in video.chosen[1:]), (*video.size, 1)]

    def preprocess(self, views: Sequence[np.ndarray], size: tuple[int, ...]) -> PatchInputs:
        return self.frames.pool(views, bool(size[2]))

    def write_text(self, video: VideoFacts, token_of: Callable[[int], str]) -> str:
        return token_of(self.token) * sum(self.count(video))


class SmolVLMVideo(VideoProcessor, frozen=True, kw_only=True):
    """Each frame stands behind its time, and the number of frames and the length of the video before all. `fps` frames of a
    second are chosen, at most `num_frames`."""

    def with_rate(self, decoding: Mapping[str, Any]) -> Self:
        return msgspec.structs.replace(self, **decoding)

    def choose(self, video: VideoFacts) -> list[int]:
        most, fps, last = self.num_frames or 64, self.fps or 1.0, video.total - 1
        count = max(min(round(fps * video.duration), most), 1)
        first, end = 0, last
        if video.duration - 2 > most * fps:  # a second at either end is left out
            first, end = max(0, int(video.fps)), min(int(video.total - video.fps), last)
        if first >= end:
            first, end = 0, last
        return sorted({int(at) for at in linspace(first, end, count)})

    def write_text(self, video: VideoFacts, token_of: Callable[[int], str]) -> str:
        shown = self.frames.text(video.size, token_of(self.token))
        many, length = spell(len(video.chosen)), timedelta(seconds=int(video.duration))
        parts = "".join(f"\nFrame from {clock(at)}:{shown}" for at in video.times)
        return f"You are provided the following series of {many} frames from a {length} [H:MM:SS] video.\n{parts}\n\n"


class Gemma4Video(UniformVideo, frozen=True, kw_only=True):
    """Each frame stands behind its time."""

    def write_text(self, video: VideoFacts, token_of: Callable[[int], str]) -> str:
        token = token_of(self.token)
        before, behind = (token_of(each) for each in self.frames.edges or ())
        parts = zip(video.times, self.count(video), strict=True)
        return " ".join(f"{clock(at)} {before}{token * n}{behind}" for at, n in parts)


class TiledVideo(UniformVideo, frozen=True, kw_only=True):
    """PerceptionLM: a tile of each frame, without text."""

    def write_text(self, video: VideoFacts, token_of: Callable[[int], str]) -> str:
        return token_of(self.token) * sum(self.count(video))


class InstructBlipVideo(UniformVideo, frozen=True, kw_only=True):
    """Vectors of all frames stand before the token that begins a text."""

    def complete(self, prompt: str) -> str:
        return self.frames.complete(prompt)

    def write_text(self, video: VideoFacts, token_of: Callable[[int], str]) -> str:
        return token_of(self.token) * sum(self.count(video))


def spell(number: int) -> str:
    """A number below 1,000 in words, as "one hundred and twenty-one"."""
    if number >= 100:
        rest = f" and {spell(number % 100)}" if number % 100 else ""
        return f"{ONES[number // 100]} hundred{rest}"
    if number < 20:
        return ONES[number]
    return TENS[number // 10] + (f"-{ONES[number % 10]}" if number % 10 else "")


def internvl(config: Config, images: Processor, options: Config) -> InternVLVideo:
    assert isinstance(images, TiledImages)
    only(read_size(options, "size", ("height", "width"), {"height": images.side}).values(), images.side)
    frames = msgspec.structs.replace(images, least=1, most=1, **pixels(options, images))
    return InternVLVideo(token=images.token, marker="<video>", frames=frames, **rate(options, None, None))


def llava_onevision(config: Config, images: Processor, options: Config) -> LlavaVideo:
    assert isinstance(images, LlavaNext)
    side = images.side
    only(read_size(options, "size", ("height", "width"), {"height": side}).values(), side)
    shared = {name: getattr(images, name) for name in ImageProcessor.__struct_fields__} | pixels(options, images)
    around = outer(config)
    key = "video_token_id" if around.get("video_token_id") is not None else "video_token_index"
    token = integer(around, key, low=0, default=151_647)
    frames = LlavaFrame(**{**shared, "token": token}, side=side)
    return LlavaVideo(token=token, marker="<video>", frames=frames, **rate(options, None, None))


def smolvlm(config: Config, images: Processor, options: Config) -> SmolVLMVideo:
    """`video_sampling`, where the file has it, wins."""
    assert isinstance(images, Idefics3)
    sampling = options.get("video_sampling") or {}
    if not isinstance(sampling, dict):
        raise CheckpointError(f"{FILE}: video_sampling: must be an object, not {sampling!r:.80}")
    reported = {
        "num_frames": sampling.get("max_frames", options.get("num_frames")),
        "fps": sampling.get("fps", options.get("fps")),
    }
    sizes = {"size": sampling.get("video_size", options.get("size"))}
    side = read_edges(options, "max_image_size", ("longest_edge",), {"longest_edge": images.side})["longest_edge"]
    only([side], images.side)
    longest = read_edges(sizes, "size", ("longest_edge",), {"longest_edge": images.side})["longest_edge"]
    frames = msgspec.structs.replace(images, longest=longest, cuts=False, **pixels(options, images))
    return SmolVLMVideo(token=images.token, marker="<video>", frames=frames, **rate(reported, None, None))


def gemma4(config: Config, images: Processor, options: Config) -> Gemma4Video:
    """Images' arithmetic, with fewer vectors to a frame."""
    assert isinstance(images, Gemma4)
    token = integer(outer(config), "video_token_id", low=0, default=258_884)
    frames = msgspec.structs.replace(
        images, token=token, vectors=integer(options, "max_soft_tokens", high=1 << 14, default=70, where=FILE)
    )
    return Gemma4Video(token=token, marker="<|video|>", frames=frames, **rate(options, None, None))


def perception_lm(config: Config, images: Processor, options: Config) -> TiledVideo:
    """Settings of images have another size, which they do not use."""
    assert isinstance(images, PerceptionLM)
    if "tile_size" not in options:
        only(read_size(options, "size", ("height", "width"), {"height": images.side}).values(), images.side)
    token = integer(outer(config), "video_token_id", low=0, default=128_003)
    frames = msgspec.structs.replace(images, token=token, most=0, **pixels(options, images))
    return TiledVideo(token=token, marker="<|video|>", frames=frames, **rate(options, None, None))


def instructblip_video(config: Config, images: Processor, options: Config) -> InstructBlipVideo:
    """Its published processor has four frames."""
    assert isinstance(images, InstructBlip)
    only(read_size(options, "size", ("height", "width"), {"height": images.side}).values(), images.side)
    frames = msgspec.structs.replace(images, marker="<video>", **pixels(options, images))
    return InstructBlipVideo(token=images.token, marker="<video>", frames=frames, **rate(options, None, 4))
