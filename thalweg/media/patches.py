"""Arrays of an image as encoders take them, made on the host: patches in an order that makes merging a matter of neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from thalweg.hal.parts.instruction import Instruction
from thalweg.hal.parts.patches import Patches
from thalweg.hal.step import SamplingArrays, StepBatch

if TYPE_CHECKING:
    from thalweg.media.processors.aria import Aria
    from thalweg.media.processors.base import ImageProcessor
    from thalweg.media.processors.deepseek_vl2 import DeepseekVl2
    from thalweg.media.processors.gemma4 import Gemma4
    from thalweg.media.processors.idefics2 import Idefics2
    from thalweg.media.processors.kimi import Kimi
    from thalweg.media.processors.lfm3_vl import Lfm3
    from thalweg.media.processors.llama4 import Llama4
    from thalweg.media.processors.minicpm_v import MiniCpmV
    from thalweg.media.processors.minicpm_v_2 import MiniCpmV2
    from thalweg.media.processors.molmo2 import Molmo2
    from thalweg.media.processors.nemotron_vl import NemotronOmni, NemotronTiles
    from thalweg.media.processors.perception_lm import PerceptionLM
    from thalweg.media.processors.qwen_vl import QwenVL
    from thalweg.media.processors.step3 import Step3

F32, I32 = np.float32, np.int32


@dataclass(slots=True)
class PatchInputs:
    """Of one image, T patches."""

    value: np.ndarray
    """f32[T, width]: each patch's channels, and their rows and columns."""
    lengths: Sequence[int]
    """Patches that see each other, in order."""
    keep: np.ndarray
    """i32[N]: patches that yield vectors. Patches merged into one vector are adjacent. -1: zeros."""
    place: np.ndarray | None = None
    """i32[T, near]: rows of the learned table that tell where a patch is."""
    share: np.ndarray | None = None
    """f32[T, near]: how much of each. None: all of the one."""
    turn: np.ndarray | None = None
    """f32[T, head_dim]: cosines, then sines, of rotary positions."""
    mix: np.ndarray | None = None
    """i32[placeholders, sorts]: indices of the computed vectors that each placeholder's vector is mixed from. The indices after
    the last mean learned vectors, such as one at the end of a row. None: each placeholder has one vector."""
    part: np.ndarray | None = None
    """f32[placeholders, sorts]: how much of each. None: all of the one."""
    windows: Sequence[int] = field(default_factory=tuple)
    """The same as `lengths` for layers that see windows. (): all layers see everything."""
    words: np.ndarray | None = None
    """i32[N]: ids of a text that the encoder reads. None: it reads none. Only where images are encoded separately."""
    vectors: int | None = None
    """Vectors that `mix` numbers. None: one for each group of `keep`."""


def normalize(view: np.ndarray, p: ImageProcessor) -> np.ndarray:
    """u8[height, width, 3] -> f32."""
    mean, std = np.array(p.mean, F32), np.array(p.std, F32)
    if p.coarse:
        mean, std, shades = _round_bfloat16(mean), _round_bfloat16(std), _round_bfloat16(view.astype(F32) * F32(p.scale))
        return _round_bfloat16(_round_bfloat16(shades - mean) / std)
    result: np.ndarray = (view.astype(F32) * F32(p.scale) - mean) / std
    return result


def _round_bfloat16(values: np.ndarray) -> np.ndarray:
    """f32 to the nearest bfloat16, of two the even one."""
    bits = values.astype(F32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).astype(np.uint32).view(F32)


def cut(image: np.ndarray, patch: int) -> np.ndarray:
    """[height, width, 3] -> [rows * columns, 3 * patch * patch], as a convolution's weight has them."""
    rows, columns = image.shape[0] // patch, image.shape[1] // patch
    image = image[: rows * patch, : columns * patch]
    parts = image.reshape(rows, patch, columns, patch, 3).transpose(0, 2, 4, 1, 3)
    return np.ascontiguousarray(parts).reshape(rows * columns, -1)


def merge_order(rows: int, columns: int, merge: int) -> np.ndarray:
    """i32[rows * columns]: patches in an order in which merge x merge neighbours are adjacent."""
    each = np.arange(rows * columns, dtype=I32).reshape(rows, columns)
    each = each[: rows // merge * merge, : columns // merge * merge]  # incomplete squares yield no vector
    return each.reshape(rows // merge, merge, columns // merge, merge).transpose(0, 2, 1, 3).reshape(-1)


def square(p: ImageProcessor, views: Sequence[np.ndarray], classes: bool, whole: bool, merge: int = 1) -> PatchInputs:
    """Squares, with a learned position embedding for each patch. classes: each square begins with a class token. whole: the
    class token yields a vector, too. merge: patches along each edge of one vector."""
    return join_squares(p, [normalize(v, p) for v in views], classes, whole, merge)


def join_squares(p: ImageProcessor, views: Sequence[np.ndarray], classes: bool, whole: bool, merge: int = 1) -> PatchInputs:
    """`square`, of views that are normalised: f32[side, side, 3]."""
    parts = [cut(v, p.patch) for v in views]
    if classes:
        parts = [np.concatenate([np.zeros((1, v.shape[1]), F32), v]) for v in parts]
    lengths = [len(v) for v in parts]
    place = np.concatenate([np.arange(n, dtype=I32) for n in lengths])
    keep = np.arange(sum(lengths), dtype=I32)
    if classes and not whole:
        keep = keep[place > 0]
    if merge > 1:
        side = views[0].shape[0] // p.patch
        keep = keep.reshape(len(views), -1)[:, merge_order(side, side, merge)].reshape(-1)
    return PatchInputs(np.concatenate(parts), lengths, keep, place[:, None])


def bucket_positions(side: int, views: int) -> np.ndarray:
    """i32[views * side * side, 1]: the place of each patch of squares, found by how far along the edges it lies. In float32
    that puts a few patches into the place before theirs, as where these models were trained."""
    limits = (1 / side + np.arange(side - 1) * (1 / side)).astype(F32)
    far = np.minimum(np.arange(side, dtype=F32) * (F32(1) / F32(side)), F32(1 - 1e-6))
    at = np.searchsorted(limits, far, side="right").astype(I32)
    return np.tile((at[:, None] * side + at).reshape(-1, 1), (views, 1))


def query_patches(p: Aria, view: np.ndarray) -> PatchInputs:
    """Patches in rows, the last ones filled up with black. Positions are found by how far along the edges they lie. Learned
    queries read them, for which the first patch is kept."""
    rows, columns = (math.ceil(edge / p.patch) for edge in view.shape[:2])
    whole = np.zeros((rows * p.patch, columns * p.patch, 3), np.uint8)
    whole[: view.shape[0], : view.shape[1]] = view
    place = _fractions(rows, columns, p.side)
    result = PatchInputs(cut(normalize(whole, p), p.patch), [rows * columns], np.zeros(p.queries, I32), place)
    result.mix = None if p.shown == p.queries else np.arange(p.shown, dtype=I32)[:, None]
    return result


def query_views(p: Idefics2, views: Sequence[np.ndarray], queries: int) -> PatchInputs:
    """Whole patches in rows, with positions found by how far along the edges they lie. Each view yields `queries` vectors, for
    which its first patch is kept."""
    parts = [cut(normalize(view, p), p.patch) for view in views]
    places = [_fractions(view.shape[0] // p.patch, view.shape[1] // p.patch, p.side) for view in views]
    firsts = np.cumsum([0, *map(len, parts[:-1])], dtype=I32)
    return PatchInputs(np.concatenate(parts), [len(part) for part in parts], np.repeat(firsts, queries), np.concatenate(places))


def _fractions(rows: int, columns: int, side: int) -> np.ndarray:
    """i32[rows * columns, 1]: places in a table of side x side, by how far along the edges patches lie."""
    limits = (1 / side + np.arange(side - 1) * (1 / side)).astype(F32)
    down, across = (
        np.searchsorted(limits, np.minimum(np.arange(n, dtype=F32) * (F32(1) / F32(n)), F32(1 - 1e-6)), side="right")
        for n in (rows, columns)
    )
    result: np.ndarray = (down[:, None] * side + across).reshape(-1, 1).astype(I32)
    return result


def pooled_windows(p: Molmo2, views: Sequence[np.ndarray], grids: Sequence[np.ndarray], pool: tuple[int, int]) -> PatchInputs:
    """Squares with a pixel's channels side by side. Windows of so many columns and rows of each grid of patches yield a vector,
    of as many patches as lie in them: the space that is missing for whole windows is half before a grid, and half behind it."""
    parts = [cut(normalize(v, p), p.patch) for v in views]
    value = np.concatenate([each.reshape(len(each), 3, -1).transpose(0, 2, 1).reshape(len(each), -1) for each in parts])
    windows = []
    for grid in grids:
        wide, high = (-size % each for size, each in zip(grid.shape[::-1], pool, strict=True))
        padded = np.pad(grid, ((high // 2, (high + 1) // 2), (wide // 2, (wide + 1) // 2)), constant_values=-1)
        rows, columns = padded.shape[0] // pool[1], padded.shape[1] // pool[0]
        each = padded.reshape(rows, pool[1], columns, pool[0]).transpose(0, 2, 1, 3).reshape(rows * columns, -1)
        windows += [window[window >= 0] for window in each]
    shown = np.concatenate(windows)
    rest = np.setdiff1d(np.arange(len(value), dtype=I32), shown)  # of overlaps, which no window reads
    sizes = [*map(len, windows), *([len(rest)] if len(rest) else [])]
    place = np.concatenate([np.arange(len(each), dtype=I32) for each in parts])
    result = PatchInputs(
        np.ascontiguousarray(value), [len(each) for each in parts], np.concatenate([shown, rest]).astype(I32), place[:, None],
        windows=sizes,
    )  # fmt: skip
    result.vectors = len(sizes)
    return result


def cropped_places(p: NemotronOmni | NemotronTiles, view: np.ndarray, *frames: np.ndarray) -> PatchInputs:
    """A table of places, stretched over a square with the longer edge of the image, of which the image has a corner. Learned
    vectors precede the patches: the first rows of the table. frames: those of a video that are encoded with the first."""
    rows, columns = (edge // p.patch for edge in view.shape[:2])
    down, across = np.divmod(np.arange(rows * columns, dtype=I32), columns)
    edge = max(rows, columns)
    place, share = spread(down * I32(edge) + across, edge, edge, p.table, cubic=False)
    before, only = np.zeros((p.first, 4), I32), np.zeros((p.first, 4), F32)
    before[:, 0], only[:, 0] = np.arange(p.first), 1
    value = np.concatenate([cut(normalize(each, p), p.patch) for each in (view, *frames)], 1)
    return PatchInputs(
        np.concatenate([np.zeros((p.first, value.shape[1]), F32), value]), [p.first + len(value)],
        I32(p.first) + merge_order(rows, columns, p.merge), place=np.concatenate([before, place + I32(p.first)]),
        share=np.concatenate([only, share]),
    )  # fmt: skip


def convolved_patches(p: Step3, view: np.ndarray) -> PatchInputs:
    """Rotary positions of columns before those of rows, a table of places stretched over the square, and two convolutions of
    3 x 3 patches with strides of 2: each vector is of 9 groups of 9 patches."""
    rows, columns = (edge // p.patch for edge in view.shape[:2])
    order = np.arange(rows * columns, dtype=I32)
    down, across = np.divmod(order, columns)
    place, share = spread(order, rows, columns, p.table, cubic=False)
    first = stride_windows(order.reshape(rows, columns)).reshape(-(-rows // 2), -(-columns // 2), 9)
    at = stride_windows(np.arange(first.shape[0] * first.shape[1], dtype=I32).reshape(first.shape[:2]))
    keep = np.where(at[..., None] < 0, I32(-1), first.reshape(-1, 9)[at]).reshape(-1)
    return PatchInputs(
        cut(normalize(view, p), p.patch), [order.size], keep, place, share, angles(across, down, p.head_dim, 1e4, False)
    )  # fmt: skip


def stride_windows(grid: np.ndarray) -> np.ndarray:
    """i32[rows, columns] -> [rows / 2 * columns / 2, 9], both rounded up: the 3 x 3 around every other place, -1 beyond the
    grid."""
    wide = np.pad(grid, 1, constant_values=-1)
    windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 3))[::2, ::2]
    return np.ascontiguousarray(windows).reshape(-1, 9)


def neighbouring_blocks(p: Lfm3, views: Sequence[np.ndarray]) -> PatchInputs:
    """Patches in merged squares, with the distances to the neighbours of each in this order. A neighbour beyond the image has a
    share of 0."""
    result = blocks(p, views)
    rows, columns = (edge // p.patch for edge in views[0].shape[:2])
    order = merge_order(rows, columns, p.merge)
    down, across = np.divmod(order, columns)
    result.turn = angles(down, across, p.head_dim, p.theta, False)
    index = np.empty(order.size, I32)
    index[order] = np.arange(order.size, dtype=I32)
    edge = p.kernel // 2
    wide = np.pad(index.reshape(rows, columns), edge, constant_values=-1)
    found = np.lib.stride_tricks.sliding_window_view(wide, (p.kernel, p.kernel)).reshape(order.size, -1)[order]
    result.share = (found >= 0).astype(F32)
    result.place = np.where(found >= 0, found - np.arange(order.size, dtype=I32)[:, None], 0).astype(I32)
    return result


def padded_squares(p: DeepseekVl2, views: Sequence[np.ndarray]) -> PatchInputs:
    """Squares, whose patches are filled up with zeros to a multiple of those that become one vector."""
    result = square(p, views, False, False)
    edge = p.side // p.patch
    grid = np.pad(np.arange(edge**2, dtype=I32).reshape(edge, edge), ((0, -edge % p.merge),) * 2, constant_values=-1)
    each = grid.reshape(-1)[merge_order(len(grid), len(grid), p.merge)]
    result.keep = np.concatenate([np.where(each < 0, each, each + I32(i * edge**2)) for i in range(len(views))])
    return result


def rotary_patches(p: ImageProcessor, view: np.ndarray, merge: int, head_dim: int, theta: float, apart: bool) -> PatchInputs:
    """Rotary positions of rows and columns. apart: rows have every other frequency, and columns those between; else both have
    the same."""
    value = cut(normalize(view, p), p.patch)
    rows, columns = view.shape[0] // p.patch, view.shape[1] // p.patch
    down, across = np.divmod(np.arange(rows * columns, dtype=I32), columns)
    turn = angles(down, across, head_dim, theta, apart)
    return PatchInputs(value, [len(value)], merge_order(rows, columns, merge), turn=turn)


def axial(p: Gemma4, view: np.ndarray) -> PatchInputs:
    """Places of columns and of rows in a table each, rotary positions of columns before those of rows, patches with a pixel's
    channels side by side."""
    rows, columns = view.shape[0] // p.patch, view.shape[1] // p.patch
    value = cut(normalize(view, p), p.patch).reshape(rows * columns, 3, p.patch**2).transpose(0, 2, 1)
    down, across = np.divmod(np.arange(rows * columns, dtype=I32), columns)
    return PatchInputs(
        np.ascontiguousarray(value).reshape(rows * columns, -1), [rows * columns], merge_order(rows, columns, p.pool),
        place=np.stack([across, p.rows + down], 1).astype(I32), turn=angles(across, down, p.head_dim, p.theta, False),
    )  # fmt: skip


def alternating(p: Kimi, view: np.ndarray) -> PatchInputs:
    """Rotary positions of columns and of rows in turns, each with the same frequencies, and a table of places stretched by
    cubic curves."""
    rows, columns = view.shape[0] // p.patch, view.shape[1] // p.patch
    order = np.arange(rows * columns, dtype=I32)
    down, across = np.divmod(order, columns)
    turn = angles(across, down, p.head_dim, 1e4, False).reshape(order.size, 2, 2, -1).swapaxes(2, 3)
    result = PatchInputs(
        cut(normalize(view, p), p.patch), [order.size], merge_order(rows, columns, p.merge),
        turn=np.ascontiguousarray(turn).reshape(order.size, -1),
    )  # fmt: skip
    result.place, result.share = spread(order, rows, columns, p.side, cubic=True)
    return result


def rotary_tiles(p: Llama4, views: Sequence[np.ndarray]) -> PatchInputs:
    """Squares with a vector of the whole before each, and rotary positions of columns and of rows, counted from 1."""
    side = p.side // p.patch
    result = square(p, views, True, False, p.merge)
    down, across = np.divmod(np.arange(side * side, dtype=I32), side)
    none = np.zeros(1, I32)
    still = angles(none, none, p.head_dim, p.theta, False)
    result.turn = np.tile(np.concatenate([still, angles(across + 1, down + 1, p.head_dim, p.theta, False)]), (len(views), 1))
    return result


def rotary_means(p: PerceptionLM, views: Sequence[np.ndarray]) -> PatchInputs:
    """Squares with rotary positions of columns and of rows, and perhaps a vector of the whole before each. Squares of vectors
    become their mean."""
    side = p.side // p.patch
    result = square(p, views, p.classes, False)
    down, across = np.divmod(np.arange(side * side, dtype=I32), side)
    across, down = (((each + F32(p.first)) * F32(p.stretch)).astype(F32) for each in (across, down))
    turn, none = angles(across, down, p.head_dim, 1e4, False), np.zeros(1, I32)
    still = angles(none, none, p.head_dim, 1e4, False)
    result.turn = np.tile(np.concatenate([still, turn]) if p.classes else turn, (len(views), 1))
    if p.merge > 1:
        begins = np.arange(len(views), dtype=I32)[:, None] * side * side
        result.mix = (merge_order(side, side, p.merge) + begins).reshape(-1, p.merge**2)
        result.part = np.full(result.mix.shape, 1 / p.merge**2, F32)
    return result


def angles(down: np.ndarray, across: np.ndarray, head_dim: int, theta: float, apart: bool) -> np.ndarray:
    """f32[T, head_dim]: cosines, then sines."""
    if apart:
        every = 1 / theta ** (np.arange(0, head_dim, 2, dtype=F32) / F32(head_dim))
        of_rows, of_columns = every[0::2], every[1::2]
    else:
        of_rows = of_columns = 1 / theta ** (np.arange(0, head_dim // 2, 2, dtype=F32) / F32(head_dim // 2))
    angle = np.concatenate([down[:, None].astype(F32) * of_rows, across[:, None].astype(F32) * of_columns], 1)
    return np.concatenate([np.cos(angle), np.sin(angle)], 1).astype(F32)


def batch(p: PatchInputs) -> StepBatch:
    """One image as a step: a sequence for each stretch of patches that see each other."""
    total, lengths = len(p.value), np.array(p.lengths, I32)
    place = np.zeros((total, 0), I32) if p.place is None else p.place
    share = np.ones(place.shape, F32) if p.share is None else p.share
    mix = np.zeros((0, 0), I32) if p.mix is None else p.mix
    windows = np.array(p.windows or p.lengths, I32)
    first = np.cumsum(lengths, dtype=I32) - lengths
    rows = np.arange(total, dtype=I32) - np.repeat(first, lengths)
    return StepBatch(
        tokens=np.zeros(total, I32), token_seq=np.repeat(np.arange(len(lengths), dtype=I32), lengths), positions=rows,
        slots=np.arange(1, 1 + len(lengths), dtype=I32), context=np.zeros(len(lengths), I32), query=lengths,
        last_row=first + lengths - I32(1), emit=np.zeros(len(lengths), bool),
        block_tables=(np.zeros((len(lengths), 1), I32),), sampling=SamplingArrays.greedy(len(lengths)),
        parts=(
            Patches(
                value=p.value, place=place, share=share,
                turn=np.zeros((total, 0), F32) if p.turn is None else p.turn, keep=p.keep,
                mix=mix, part=np.ones(mix.shape, F32) if p.part is None else p.part,
                window=windows, window_seq=np.repeat(np.arange(len(windows), dtype=I32), windows),
            ),
            *([] if p.words is None else [Instruction(p.words)]),
        ),
    )  # fmt: skip


def windows(whole: StepBatch) -> StepBatch:
    """The same patches, each window a sequence."""
    patches = whole.get(Patches)
    assert patches is not None
    size = patches.window
    return replace(
        whole, token_seq=patches.window_seq, query=size, last_row=np.cumsum(size, dtype=I32) - I32(1),
        slots=np.ones_like(size), context=np.zeros_like(size),
    )  # fmt: skip


def shrunk(whole: StepBatch, group: int) -> StepBatch:
    """The same images after so many neighbours became one."""
    query, token_seq = whole.query // group, whole.token_seq[::group]
    last = np.cumsum(query, dtype=I32) - I32(1)
    rows = np.arange(token_seq.size, dtype=I32) - (last + I32(1) - query)[token_seq]
    return replace(
        whole, tokens=whole.tokens[::group], token_seq=token_seq, query=query, last_row=last, positions=rows.astype(I32)
    )


def blocks(p: QwenVL, views: Sequence[np.ndarray]) -> PatchInputs:
    """Patches in merged squares. Where layers attend within windows, window by window. views: one, which each patch repeats, or
    as many consecutive frames as a patch goes through, of one size."""
    view = views[0]
    rows, columns = view.shape[0] // p.patch, view.shape[1] // p.patch
    order = merge_order(rows, columns, p.merge)
    down, across = np.divmod(order, columns)
    keep, lengths = np.arange(order.size, dtype=I32), list[int]()
    if p.window:
        moved, lengths = _windows(rows // p.merge, columns // p.merge, p.window)
        every = (moved[:, None] * p.merge**2 + np.arange(p.merge**2, dtype=I32)).reshape(-1)
        order, down, across = order[every], down[every], across[every]
        keep = np.argsort(every).astype(I32)
        lengths = [n * p.merge**2 for n in lengths]
    each = [cut(normalize(view, p), p.patch).reshape(rows * columns, 3, 1, p.patch, p.patch) for view in views]
    flat = np.concatenate(each, 2)[order]
    value = np.broadcast_to(flat, (order.size, 3, p.frames, p.patch, p.patch)).reshape(order.size, -1)
    result = PatchInputs(
        np.ascontiguousarray(value), [order.size], keep, turn=angles(down, across, p.head_dim, 1e4, False), windows=lengths
    )
    if p.side:
        result.place, result.share = interpolate_corners(down, across, rows, columns, p.side)
    return result


def _windows(rows: int, columns: int, window: int) -> tuple[np.ndarray, list[int]]:
    """Merged patches in the order of their windows, and how many each window has."""
    each = np.arange(rows * columns, dtype=I32).reshape(rows, columns)
    parts = [
        each[top : top + window, left : left + window].reshape(-1)
        for top in range(0, rows, window)
        for left in range(0, columns, window)
    ]
    return np.concatenate(parts), [len(part) for part in parts]


def interpolate_corners(
    down: np.ndarray, across: np.ndarray, rows: int, columns: int, side: int
) -> tuple[np.ndarray, np.ndarray]:
    """The four nearest rows of a table of side x side places stretched over the image, corner on corner, and their shares."""
    near, share = [], []
    for at, size in ((down, rows), (across, columns)):
        where = at.astype(F32) * F32(side - 1) / F32(max(size - 1, 1))
        low = np.floor(where).astype(I32)
        near.append((low, np.minimum(low + 1, side - 1)))
        share.append((1 - (where - low), where - low))
    place = [near[0][i] * side + near[1][j] for i in (0, 1) for j in (0, 1)]
    much = [share[0][i] * share[1][j] for i in (0, 1) for j in (0, 1)]
    return np.stack(place, 1).astype(I32), np.stack(much, 1).astype(F32)


def spread(
    order: np.ndarray, rows: int, columns: int, side: int, cubic: bool, longer: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Interpolation of a table of side x side positions stretched over the image, centre on centre: the nearest rows and their
    shares, sixteen for bicubic, else four for bilinear. Beyond the table its edge is repeated. order: of the patches. longer:
    added to the size of the image, in patches."""
    near, share = [], []
    for at, size in zip(np.divmod(order, columns), (rows, columns), strict=True):
        where = (at.astype(F32) + F32(0.5)) * F32(side) / F32(size + longer) - F32(0.5)
        low = np.floor(where)
        far = (where - low).astype(F32)
        taps = (-1, 0, 1, 2) if cubic else (0, 1)
        near.append([np.clip(low.astype(I32) + i, 0, side - 1) for i in taps])
        share.append([_cubic(np.abs(far - F32(i))) if cubic else 1 - np.abs(far - F32(i)) for i in taps])
    place = [y * side + x for y in near[0] for x in near[1]]
    much = [v * u for v in share[0] for u in share[1]]
    return np.stack(place, 1).astype(I32), np.stack(much, 1).astype(F32)


def interpolated_patches(p: ImageProcessor, view: np.ndarray, merge: int, side: int) -> PatchInputs:
    """Patches with a pixel's channels side by side. A table of side x side places is stretched over them, or shrunk: then each
    place is the mean of those near it, the nearer the more."""
    rows, columns = view.shape[0] // p.patch, view.shape[1] // p.patch
    value = cut(normalize(view, p), p.patch).reshape(rows * columns, 3, p.patch**2).transpose(0, 2, 1)
    (down, high), (across, wide) = _near(rows, side), _near(columns, side)
    place = (down[:, None, :, None] * side + across[None, :, None]).reshape(rows * columns, -1)
    share = (high[:, None, :, None] * wide[None, :, None]).reshape(rows * columns, -1)
    return PatchInputs(
        np.ascontiguousarray(value).reshape(rows * columns, -1), [rows * columns], merge_order(rows, columns, merge),
        place=place.astype(I32), share=share.astype(F32),
    )  # fmt: skip


def _near(size: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Of each of `size` in a row: those of `side` near it, and how much of each."""
    step = side / size
    reach = max(step, 1.0)
    middle = step * (np.arange(size)[:, None] + 0.5)
    first = np.maximum((middle - reach + 0.5).astype(np.int64), 0)
    taps = first + np.arange(2 * int(np.ceil(reach)) + 1)
    last = np.minimum((middle + reach + 0.5).astype(np.int64), side)
    much = np.where(taps < last, np.maximum(1 - np.abs(taps + 0.5 - middle) / reach, 0), 0)
    needed = np.flatnonzero(much.any(0))[-1] + 1
    return np.minimum(taps, side - 1)[:, :needed], (much / much.sum(1, keepdims=True))[:, :needed]


def nested_blocks(p: MiniCpmV, views: Sequence[np.ndarray]) -> PatchInputs:
    """Patches in merged squares of four, which form squares of four again. Positions are found by the relative distance of a
    patch along the edges."""
    parts, places = [], []
    for view in views:
        rows, columns = view.shape[0] // p.patch, view.shape[1] // p.patch
        order = twice(rows, columns) if p.merge > 2 else merge_order(rows, columns, p.merge)
        parts.append(cut(normalize(view, p), p.patch)[order])
        down, across = (_bucket(size, p.side) for size in (rows, columns))
        places.append((down[:, None] * p.side + across).reshape(-1)[order])
    lengths = [len(part) for part in parts]
    if p.merge == 2:
        return PatchInputs(np.concatenate(parts), lengths, np.arange(sum(lengths), dtype=I32), np.concatenate(places)[:, None])
    keep = np.arange(sum(lengths) // 4, dtype=I32)
    return PatchInputs(
        np.concatenate(parts), lengths, keep, place=np.concatenate(places)[:, None], windows=[4] * (sum(lengths) // 4)
    )


def read_views(p: MiniCpmV2, views: Sequence[np.ndarray]) -> PatchInputs:
    """Patches in rows, with positions found by the relative distance along the edges. Each view yields `queries` vectors, for
    which its first patch is kept. `turn` has rows and columns."""
    parts, places, at, firsts = [], [], [], [0]
    for view in views:
        rows, columns = view.shape[0] // p.patch, view.shape[1] // p.patch
        parts.append(cut(normalize(view, p), p.patch))
        down, across = (_bucket(size, p.side) for size in (rows, columns))
        places.append((down[:, None] * p.side + across).reshape(-1))
        at.append(np.stack(np.divmod(np.arange(rows * columns, dtype=I32), columns), 1).astype(F32))
        firsts.append(firsts[-1] + rows * columns)
    keep = np.repeat(np.array(firsts[:-1], I32), p.queries)
    return PatchInputs(
        np.concatenate(parts), [len(part) for part in parts], keep, place=np.concatenate(places)[:, None],
        turn=np.concatenate(at),
    )  # fmt: skip


def twice(rows: int, columns: int) -> np.ndarray:
    """i32[rows * columns]: patches in an order in which squares of four are adjacent, and squares of four such squares."""
    each = np.arange(rows * columns, dtype=I32).reshape(rows // 4, 2, 2, columns // 4, 2, 2)
    return each.transpose(0, 3, 1, 4, 2, 5).reshape(-1)


def _bucket(size: int, side: int) -> np.ndarray:
    """The place of each of `size` in a row of `side`."""
    limits = (1 / side + np.arange(math.ceil((1 - 1 / side) * side)) * (1 / side)).astype(F32)
    return np.searchsorted(limits, np.arange(size, dtype=F32) / F32(size), side="right").astype(I32)


def resize_cubic(image: np.ndarray, side: int) -> np.ndarray:
    """f32[height, width, C] -> f32[side, side, C] by cubic curves through the nearest four of each axis, without a filter."""
    for axis in (0, 1):
        length = image.shape[axis]
        where = (np.arange(side, dtype=F32) + F32(0.5)) * F32(length / side) - F32(0.5)
        low = np.floor(where)
        far = (where - low).astype(F32)
        shape = (side, 1, 1) if axis == 0 else (1, side, 1)
        taps = [(np.clip(low + i, 0, length - 1).astype(I32), _cubic(np.abs(far - F32(i)))) for i in (-1, 0, 1, 2)]
        image = sum(np.take(image, at, axis) * share.reshape(shape) for at, share in taps)
    return image.astype(F32)


def _cubic(far: np.ndarray) -> np.ndarray:
    """Bicubic weight at a distance from 0 to 2 (Keys 1981, with -0.75)."""
    a = F32(-0.75)
    result: np.ndarray = np.where(far <= 1, ((a + 2) * far - (a + 3)) * far * far + 1, ((far - 5) * far + 8) * far * a - 4 * a)
    return result
