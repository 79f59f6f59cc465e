"""VideoLLaMA 3: images keep their ratio between two numbers of pixels, and each patch yields a vector."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, integer
from thalweg.errors import UnsupportedModelError
from thalweg.media.processors.base import FILE, HALF, Size, edge, read_size, settings, token, vision
from thalweg.media.processors.qwen_vl import QwenVL

EDGES = ("shortest_edge", "longest_edge")
LEAST, MOST = 56 * 56, 28 * 28 * 1280


class VideoLlama3(QwenVL, frozen=True, kw_only=True):
    """Positions of its vectors follow each other, as those of text do."""

    def grid(self, size: Size) -> None:
        return None


def video_llama_3(config: Config, options: Config) -> VideoLlama3:
    seen = vision(config)
    if (
        integer(options, "merge_size", default=1, where=FILE) != 1
        or integer(options, "temporal_patch_size", default=1, where=FILE) != 1
    ):
        raise UnsupportedModelError(f"{FILE}: merge_size and temporal_patch_size: only 1 is supported for images")
    size = read_size(options, "size", EDGES, {EDGES[0]: LEAST, EDGES[1]: MOST})
    return VideoLlama3(
        token=token(config, 151_655), patch=edge(seen, "patch_size", 16), merge=1, frames=1,
        least=integer(options, "min_pixels", default=size.get(EDGES[0], LEAST), where=FILE),
        most=integer(options, "max_pixels", default=size.get(EDGES[1], MOST), where=FILE),
        head_dim=integer(seen, "hidden_size", default=768) // integer(seen, "num_attention_heads", default=12),
        **settings(options, mean=HALF, std=HALF),
    )  # fmt: skip
