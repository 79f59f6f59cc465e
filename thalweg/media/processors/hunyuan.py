"""HunYuan-VL and Hy4-VL: images keep their ratio between two numbers of pixels. A learned vector ends each row, and positions
have several axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from thalweg.checkpoint.config import Config, integer, rope_parameters
from thalweg.errors import CheckpointError
from thalweg.media.processors.base import FILE, Frame, Size, read_size, settings, token, vision
from thalweg.media.processors.qwen_vl import MEAN, STD, QwenVL

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs

EDGES = ("shortest_edge", "longest_edge")
LEAST, MOST = 512 * 512, 2048 * 2048


class Hy4(QwenVL, frozen=True, kw_only=True):
    """The end of a row is one more column."""

    def grid(self, size: Size) -> Size:
        width, height = self.first_view_size(size)
        unit = self.patch * self.merge
        return width // unit + 1, height // unit

    def count(self, size: Size) -> int:
        columns, rows = self.grid(size)
        return columns * rows

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        from thalweg.media import row_patches

        return row_patches.stretch_rows(self, views[0], longer=0.1)


class HunYuanVL(QwenVL, frozen=True, kw_only=True):
    """Learned vectors stand before the first row and behind the last, too. They have a text's positions. Others have their
    column, their row and the number of their image, along the last three axes."""

    axes: int

    def cells(self, size: Size) -> Size:
        """Columns and rows, with the ends of rows."""
        width, height = self.first_view_size(size)
        unit = self.patch * self.merge
        return width // unit + 1, height // unit

    def grid(self, size: Size) -> None:
        return None

    def count(self, size: Size) -> int:
        columns, rows = self.cells(size)
        return columns * rows + 2

    def frame(self, size: Size, ids: Sequence[int], positions: np.ndarray) -> Frame:
        import numpy as np  # which the process that reads images does without

        (columns, rows), first = self.cells(size), int(positions[0])
        before = np.array(ids[:first]) == self.token
        number = int(before[:1].sum() + (before[1:] & ~before[:-1]).sum())
        axes = np.repeat(np.arange(len(positions), dtype=np.int32)[:, None], self.axes, 1)
        down, across = np.divmod(np.arange(columns * rows, dtype=np.int32), columns)
        axes[1:-1, -3:] = np.stack([across, down, np.full_like(down, number)], 1) - first
        return Frame(lead=0, tail=0, axes=axes, extent=len(positions))

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        import numpy as np

        from thalweg.media import row_patches

        result = row_patches.stretch_rows(self, views[0], longer=0.0)
        assert result.mix is not None
        end = result.keep.size // self.merge**2
        begin, last = (np.full((1, 1), end + i, np.int32) for i in (1, 2))
        result.mix = np.concatenate([begin, result.mix, last])
        return result


def rope_sections(config: Config) -> tuple[int, ...]:
    """Frequencies by each axis: three or four numbers, half of `head_dim` together."""
    options, half = rope_parameters(config), integer(config, "head_dim", default=128) // 2
    found: Any = options.get("mrope_section") or options.get("xdrope_section")
    numbers = isinstance(found, list) and all(type(n) in (int, float) and n == int(n) >= 0 for n in found)
    if not numbers or len(found) not in (3, 4) or sum(found) != half:
        raise CheckpointError(f"config.json: mrope_section: must be 3 or 4 numbers of {half} together, not {found!r:.80}")
    return tuple(int(n) for n in found)


def hunyuan_vl(config: Config, options: Config) -> HunYuanVL:
    return HunYuanVL(axes=len(rope_sections(config)), **_fields(config, options))


def hy_v4_vl(config: Config, options: Config) -> Hy4:
    return Hy4(**_fields(config, options))


def _fields(config: Config, options: Config) -> dict[str, Any]:
    """Bicubic, whatever the file says: the authors' code does not read `resample`."""
    seen = vision(config)
    size = read_size(options, "size", EDGES, {EDGES[0]: LEAST, EDGES[1]: MOST})
    patch = integer(seen, "patch_size", default=16)
    return {
        "token": token(config, 120_120), "patch": patch, "merge": integer(seen, "spatial_merge_size", high=16, default=2),
        "least": integer(options, "min_pixels", default=size.get(EDGES[0], LEAST), where=FILE), "frames": 1, "head_dim": 0,
        "most": integer(options, "max_pixels", default=size.get(EDGES[1], MOST), where=FILE),
        "side": integer(seen, "max_image_size", default=2048) // patch,
        **settings({key: value for key, value in options.items() if key != "resample"}, mean=MEAN, std=STD),
    }  # fmt: skip
