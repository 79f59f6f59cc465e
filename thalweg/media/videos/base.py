"""The interface of a video processor: the frames that a model sees of a video, and their text in the prompt."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import msgspec

from thalweg.checkpoint.config import Config, integer, real
from thalweg.media.processors import Processor, Size
from thalweg.media.processors.base import settings
from thalweg.media.videos.frames import LlavaFrame, NemotronFrame, QwenFrame

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs

Frame = Processor | LlavaFrame | NemotronFrame | QwenFrame
"""Settings of a frame."""
MOST_FRAMES = 768
"""Frames of a video that a model is shown."""
FILE = "video_preprocessor_config.json"


class VideoFacts(msgspec.Struct, frozen=True):
    """What the header of a file says, and the frames chosen by it."""

    total: int
    """Frames of the file."""
    fps: float
    width: int
    height: int
    chosen: tuple[int, ...] = ()
    """Numbers of the frames that the model sees, ascending. One may repeat."""

    @property
    def size(self) -> Size:
        return self.width, self.height

    @property
    def duration(self) -> float:
        """Seconds."""
        return self.total / self.fps

    @property
    def times(self) -> list[float]:
        """Seconds from the start to each chosen frame."""
        return [number / self.fps for number in self.chosen]


class VideoProcessor(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Settings of one model. The methods are arithmetic on the facts of a video. They load no library, because the process
    that decodes videos asks them, too."""

    token: int
    """The id that stands for one vector."""
    marker: str
    """The placeholder in templates."""
    frames: Frame
    """Settings of a frame."""
    num_frames: int | None = None
    fps: float | None = None
    """How many frames are chosen, or how many of a second. Both None: as the family does without either."""
    group: int = 1
    """Consecutive frames encoded together, as one input. The last frame fills up an incomplete group."""

    def choose(self, video: VideoFacts) -> list[int]:
        """Numbers of frames. At least one."""
        raise NotImplementedError

    def with_rate(self, decoding: Mapping[str, Any]) -> Self:
        """decoding: `num_frames` or `fps`, which replaces both of the model's files."""
        return msgspec.structs.replace(self, **{"num_frames": None, "fps": None, **decoding}) if decoding else self

    def frame(self, count: int) -> Frame:
        """Settings of a frame of a video of which so many are shown."""
        return self.frames

    def count(self, video: VideoFacts) -> list[int]:
        """Vectors of each group of frames."""
        each = self.frame(len(video.chosen)).count(video.size)
        return [each] * math.ceil(len(video.chosen) / self.group)

    def write_text(self, video: VideoFacts, token_of: Callable[[int], str]) -> str:
        """The text of a video in the prompt. token_of: text of a token."""
        raise NotImplementedError

    def complete(self, prompt: str) -> str:
        """As of `ImageProcessor`."""
        return prompt

    def axes(self, video: VideoFacts) -> list[tuple[np.ndarray, int] | None]:
        """`Input.axes` and `Input.extent` of each group. None: as those of an image of the frame's size."""
        return [None] * len(self.count(video))

    def facts(self, video: VideoFacts) -> list[tuple[int, ...]]:
        """`Input.size` of each group: width, height, and more where a family needs it."""
        return [video.size] * len(self.count(video))

    def preprocess(self, views: Sequence[np.ndarray], size: tuple[int, ...]) -> PatchInputs:
        """Arrays for the encoder. views: u8[height, width, 3] of each frame of a group. size: as `facts` has it."""
        return self.frames.preprocess(views, (size[0], size[1]))


def pixels(options: Config, frames: Frame, **defaults: Any) -> dict[str, Any]:
    """Fields of `ImageProcessor` that a model's settings of videos may have otherwise than those of images. defaults: mean and
    std where the file has none, if not those of images."""
    return settings(options, **{"mean": frames.mean, "std": frames.std, "resample": frames.resample, **defaults})


def rate(options: Config, default_fps: float | None, default_frames: int | None) -> dict[str, Any]:
    """`num_frames` and `fps`. defaults: of the family's own processor."""
    frames = integer(options, "num_frames", high=MOST_FRAMES, default=0, where=FILE) or default_frames
    fps = real(options, "fps", 0.01, 240, default=0, where=FILE) or default_fps
    return {"num_frames": frames, "fps": fps}


def linspace(first: int, last: int, count: int) -> list[float]:
    """So many numbers with equal distances, both ends among them. As numpy's, bit for bit."""
    if count == 1:
        return [float(first)]
    step = (last - first) / (count - 1)
    return [*(i * step + first for i in range(count - 1)), float(last)]


def clock(seconds: float) -> str:
    """MM:SS."""
    return f"{int(seconds // 60):02d}:{int(seconds % 60):02d}"
