"""Videos of Nemotron 3 Omni: pairs of frames are encoded together, by another embedding of patches than images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.media.processors import Processor
from thalweg.media.processors.base import three, vision
from thalweg.media.processors.nemotron_vl import NemotronOmni
from thalweg.media.videos.base import FILE, VideoFacts, rate
from thalweg.media.videos.frames import NemotronFrame
from thalweg.media.videos.stills import UniformVideo


class NemotronVideo(UniformVideo, frozen=True, kw_only=True):
    """The number and the time of each frame stand before their group."""

    frames: NemotronFrame

    def write_text(self, video: VideoFacts, token_of: Callable[[int], str]) -> str:
        step, token, lines = int(1000 / video.fps), token_of(self.token), []
        for n, count in enumerate(self.count(video)):
            first = n * self.group
            words = [
                f"{'frame' if i else 'Frame'} {first + i + 1} sampled at {at * step / 1000:.2f} seconds"
                for i, at in enumerate(video.chosen[first : first + self.group])
            ]
            lines.append(f"{' and '.join(words)}: <img>{token * count}</img>")
        return "\n".join(lines)


def nemotron_omni(config: Config, images: Processor, options: Config) -> NemotronVideo:
    assert isinstance(images, NemotronOmni)
    shared: dict[str, Any] = {name: getattr(images, name) for name in NemotronOmni.__struct_fields__}
    shared |= {"mean": three(options, "norm_mean", images.mean), "std": three(options, "norm_std", images.std)}
    frames = NemotronFrame(
        **shared, target=integer(options, "video_target_num_patches", high=1 << 20, default=1024, where=FILE),
        square=not flag(options, "video_maintain_aspect_ratio", True),
    )  # fmt: skip
    group = integer(vision(config), "video_temporal_patch_size", high=16, default=2)
    return NemotronVideo(token=images.token, marker="<video>", frames=frames, group=group, **rate(options, None, None))
