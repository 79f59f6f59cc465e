"""The interface of an image processor: the views that a model needs of an image, and its text in the prompt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from thalweg.checkpoint.config import Config, integer, real
from thalweg.errors import CheckpointError, UnsupportedModelError

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs

Size = tuple[int, int]
"""Width and height."""
HALF = (0.5, 0.5, 0.5)
BICUBIC, BILINEAR = 3, 2
"""Resampling filters, by PIL's numbers."""
MOST_RATIO = 200
"""Largest accepted ratio of the longer to the shorter edge."""
FILE = "preprocessor_config.json"


class View(msgspec.Struct, frozen=True):
    """A view of an image: resized to each of these sizes in turn, then cropped."""

    sizes: tuple[Size, ...]
    box: tuple[int, int, int, int] | None = None
    """Left, top, right, bottom. The area beyond the image is black."""
    part: tuple[int, int, int, int] | None = None
    """The same of the area that is resized. None: the whole image."""
    after: Size | None = None
    """The crop is resized to this."""
    fill: tuple[int, int, int] | None = None
    """The colour beyond the image. None: black."""


class Frame(msgspec.Struct, frozen=True):
    """Positions of an image's tokens, and of some around them, along several axes."""

    lead: int
    """Tokens before the first placeholder."""
    tail: int
    """Tokens behind the last one."""
    axes: np.ndarray
    """i32[tokens, axes], relative to where the first token would be as text."""
    extent: int
    """How far the text behind lies from there."""


class ImageProcessor(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Settings of one model. `views` and `text` are arithmetic on the size of an image, upright, as it was sent. They load no
    library, because the process that reads images asks them, too."""

    token: int
    """The id that stands for one vector."""
    others: tuple[int, ...] = ()
    """Further ids that stand for one vector each."""
    patch: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    scale: float
    resample: int
    marker: str = ""
    """The placeholder in templates. "": the token's own text."""
    coarse: bool = False
    """Values are rounded to bfloat16 after each step of their arithmetic."""
    number: str = ""
    """Text before `text`, with {0} for the number of the image in its prompt, from 0, or {1} for the same from 1."""
    edges: tuple[int, int] | None = None
    """Ids before and after the text of `text`, for families that name them in their configuration."""
    whole_prompt: bool = False
    """An image has one vector, and is a prompt without text."""
    source: bool = False
    """An image is the source of cross-attention, the only one of its prompt (`source_array`)."""
    bare: bool = False
    """The tokenizer adds no special tokens to a program's prompt."""
    first_id: int | None = None
    """As of `MediaReader`."""
    together: bool = False
    """The vectors of an image see each other, those behind too."""
    single: bool = False
    """A prompt has one image."""
    sampled: bool = False
    """Images are resized by sampling the source at the place of each pixel, without a filter (bilinear)."""
    reads_text: bool = False
    """Its encoder reads the text of the prompt, too (`add_text`)."""
    numbered: str = ""
    """As of `MediaReader`."""
    separate: bool = False
    """Its encoder computes one image at a time."""
    prefix: int = 0
    """So do all tokens of a prompt with an image, which has at most so many. 0: they do not. Requires `together`."""

    def views(self, width: int, height: int) -> tuple[View, ...]:
        """Views of an image of this size. ValueError, with a message for the client, for an unsupported size."""
        raise NotImplementedError

    def first_view_size(self, size: Size) -> Size:
        """Of the first view."""
        view = self.views(*size)[0]
        return view.sizes[-1] if view.box is None else (view.box[2] - view.box[0], view.box[3] - view.box[1])

    def text(self, size: Size, token: str) -> str:
        """The text of an image of this size in the prompt. token: the text of `self.token`."""
        return token * self.count(size)

    def join(self, text: str, adjacent: bool, following: str) -> str:
        """An image's `text` with its number, as its neighbours in the prompt require. adjacent: an image ends where it begins.
        following: the prompt behind its marker."""
        return text

    def complete(self, prompt: str) -> str:
        """A program's prompt with an image as the model was trained with it. ValueError, with a message for the client."""
        return prompt

    def count(self, size: Size) -> int:
        """Vectors."""
        raise NotImplementedError

    def grid(self, size: Size) -> Size | None:
        """Columns and rows of the vectors, for models with several position axes. None: positions have one axis."""
        return None

    def frame(self, size: Size, ids: Sequence[int], positions: np.ndarray) -> Frame | None:
        """Where `grid` does not describe the positions. ids: of the prompt. positions: i32[count] of its placeholders."""
        return None

    def add_text(self, data: tuple[np.ndarray, ...], text: str) -> tuple[np.ndarray, ...]:
        """`Input.data` of an image, with the text of its prompt for the encoder. text: without placeholders. ValueError, with a
        message for the client."""
        raise NotImplementedError

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        """Arrays for the encoder. views: u8[height, width, 3] each, of an image of this size."""
        raise NotImplementedError

    def source_array(self, views: Sequence[np.ndarray], size: Size, position: int) -> np.ndarray:
        """f32[rows, columns] for an encoder that cross-attention reads. views: as of `preprocess`. position: of the image among
        the prompt's tokens."""
        raise NotImplementedError


def settings(options: Config, **defaults: Any) -> dict[str, Any]:
    """The fields that all processors share. options: of preprocessor_config.json. defaults: mean, std, resample."""
    for key in ("do_rescale", "do_normalize", "do_resize", "do_convert_rgb"):
        if options.get(key) is False:
            raise UnsupportedModelError(f"{FILE}: {key}: false is not supported by this version")
    return {
        "mean": three(options, "image_mean", defaults["mean"]),
        "std": three(options, "image_std", defaults["std"]),
        "scale": real(options, "rescale_factor", 1e-6, 1.0, default=1 / 255, where=FILE),
        "resample": integer(options, "resample", low=0, high=5, default=defaults.get("resample", BICUBIC), where=FILE),
    }


def three(options: Config, key: str, default: Sequence[float]) -> tuple[float, float, float]:
    found = options.get(key)
    if found is None:
        found = list(default)
    if isinstance(found, int | float) and not isinstance(found, bool):
        found = [found] * 3
    if not isinstance(found, list) or len(found) != 3 or not all(isinstance(v, int | float) for v in found):
        raise CheckpointError(f"{FILE}: {key}: must be a number, or a list of 3, not {found!r:.80}")
    return float(found[0]), float(found[1]), float(found[2])


def read_edges(options: Config, key: str, names: Sequence[str], default: Mapping[str, int]) -> dict[str, int]:
    """`read_size` with all of these names. CheckpointError names one that is missing."""
    found = read_size(options, key, names, default)
    if missing := [name for name in names if name not in found]:
        raise CheckpointError(f"{FILE}: {key}: {missing[0]}: missing")
    return found


def read_size(options: Config, key: str, names: Sequence[str], default: Mapping[str, int]) -> dict[str, int]:
    """A size of some of these names: an object, or one number for the first name."""
    found = options.get(key)
    if found is None:
        found = dict(default)
    if isinstance(found, int) and not isinstance(found, bool):
        found = dict.fromkeys(("height", "width"), found) if "height" in names else {names[0]: found}
    if not isinstance(found, dict):
        raise CheckpointError(f"{FILE}: {key}: must be an object, not {found!r:.80}")
    return {k: integer(found, k, high=1 << 16 if "edge" not in k else 1 << 28, where=f"{FILE}: {key}")
            for k in names if found.get(k) is not None}  # fmt: skip


def edge(config: Config, key: str, default: int) -> int:
    """A number, or two equal ones. UnsupportedModelError for a shape other than a square."""
    found = config.get(key)
    if isinstance(found, list):
        if len(found) != 2 or found[0] != found[1]:
            raise UnsupportedModelError(f"config.json: vision_config: {key}: {found!r:.40} is no square")
        config = {**config, key: found[0]}
    return integer(config, key, high=1 << 16, default=default)


def outer(config: Config) -> Config:
    """The configuration around the text part."""
    found = config.get("beside_text")
    return found if isinstance(found, dict) else config


def vision(config: Config) -> dict[str, Any]:
    """`vision_config`. CheckpointError if there is none."""
    found = outer(config).get("vision_config")
    if not isinstance(found, dict):
        raise CheckpointError("config.json: vision_config: missing")
    return found


def token(config: Config, default: int | None = None) -> int:
    """The id that stands for an image's vectors."""
    around = outer(config)
    key = "image_token_id" if around.get("image_token_id") is not None else "image_token_index"
    return integer(around, key, low=0, default=default)


def check_shape(width: int, height: int) -> None:
    """ValueError for an unsupported shape."""
    if max(width, height) > MOST_RATIO * min(width, height):
        raise ValueError(f"is {width} x {height} pixels: more than {MOST_RATIO} times as long as wide")


def closest(width: int, height: int, side: int, least: int, most: int, longest: int = 0, other: Size | None = None) -> Size:
    """Columns and rows of squares that have an image's ratio best. Of equally good ones the most, while the image has more than
    half of their pixels. longest: squares along an edge; 0 = as many as `most`. other: columns and rows of a first grid, which
    those of the result do not divide."""
    best, found = float("inf"), (1, 1)
    for columns, rows in tile_grids(least, most, longest):
        if other is not None and (other[0] % columns == 0 or other[1] % rows == 0):
            continue
        off = abs(width / height - columns / rows)
        if off < best or (off == best and width * height > 0.5 * side * side * columns * rows):
            best, found = off, (columns, rows)
    return found


def tile_grids(least: int, most: int, longest: int = 0) -> list[Size]:
    """Columns and rows of so many squares, fewer squares first. longest: squares along an edge; 0 = as many as `most`."""
    edges = range(1, min(most, longest or most) + 1)
    return sorted(((x, y) for x in edges for y in edges if least <= x * y <= most), key=lambda grid: grid[0] * grid[1])


def most_similar(width: int, height: int, side: int, least: int, most: int) -> Size:
    """Columns and rows of squares with the largest product of two shares: of the smaller aspect ratio in the larger, and of the
    squares' pixels in the image's, of which 0.6 is enough."""
    best, found = 0.0, (1, 1)
    for columns, rows in tile_grids(least, most):
        ratio, target = width / height, columns / rows
        share = min(columns * rows * side * side / (width * height), 0.6) * min(target / ratio, ratio / target)
        if share > best:
            best, found = share, (columns, rows)
    return found


def shuffle(config: Config, key: str) -> int:
    """Patches along an edge of those that become one vector, of which files say the inverse."""
    ratio = real(config, key, 0.05, 1, default=0.5)
    if round(1 / ratio) * ratio != 1:
        raise CheckpointError(f"config.json: {key}: {ratio} is not one of a whole number")
    return round(1 / ratio)


def cut(sizes: tuple[Size, ...], columns: int, rows: int, side: int) -> tuple[View, ...]:
    """Squares of an image after resizing to `sizes` in turn, row by row."""
    boxes = [(x * side, y * side, (x + 1) * side, (y + 1) * side) for y in range(rows) for x in range(columns)]
    return tuple(View(sizes, box) for box in boxes)


def only(sizes: Iterable[int], side: int) -> None:
    """UnsupportedModelError if the files name another size of squares than the encoder's."""
    if set(sizes) != {side}:
        raise UnsupportedModelError(f"{FILE}: size: the encoder requires squares of {side} pixels")
