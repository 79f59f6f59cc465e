"""What a tensor of transformers is made of: one of the file's, or some of its rows, and what the converter changed in it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from thalweg.checkpoint.gguf import blocks
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.types import Type

Order = Callable[[], np.ndarray]
"""Which row of the file's tensor each row is: made when it is read."""
Tiles = tuple[int, int, int]
"""Heads of keys, heads of values for each, and values of a head. Files have the first head of values of every head of keys,
then the second of each, where transformers has all of one head of keys together."""


@dataclass(frozen=True, slots=True, eq=False)
class GGUFPiece:
    source: str
    shape: tuple[int, ...]
    """As transformers has it. The file's may have the same values in other dimensions."""
    index: int | None = None
    """Which matrix of a tensor that holds several."""
    first: int = 0
    """The first of its rows in the source's."""
    order: Order | None = None
    """Rows in another order; then `first` says nothing."""
    tiles: Tiles | None = None
    """Columns, of heads of values, that lie as files have those."""
    value: Callable[[np.ndarray], np.ndarray] | None = None
    """What undoes the converter's change, value by value, in float32."""
    by_head: bool = False
    """The source has a matrix for each head, which become one."""
    swapped: bool = False
    """Each lies on its side."""
    coded: bool = False
    """Kept as the file's blocks."""
    parts: tuple[GGUFPiece, ...] = ()
    """Pieces that are joined, one after the other; then only the shape, `coded` and the first one's source are said here."""


PART = "#"
"""Follows the name of a tensor that several pieces make, before the number of the piece."""


def subtract_one(values: np.ndarray) -> np.ndarray:
    """Of norms whose weights were raised by 1."""
    return values - np.float32(1)


def logarithm(values: np.ndarray) -> np.ndarray:
    """Of rates that were written as -exp(A_log)."""
    found: np.ndarray = np.log(-values)
    return found


def deinterleave_rows(rows: int, heads: int) -> Order:
    """Row i of a head's first half and row i of its second were put side by side."""
    return partial(_deinterleave_rows, rows, heads)


def _deinterleave_rows(rows: int, heads: int) -> np.ndarray:
    found: np.ndarray = np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
    return found


def tile(tiles: Tiles, first: int = 0) -> Order:
    """Rows of heads of values, after so many that lie as they should."""
    return partial(_tile, tiles, first)


def _tile(tiles: Tiles, first: int) -> np.ndarray:
    keys, each, size = tiles
    found: np.ndarray = np.arange(keys * each * size).reshape(each, keys, size).swapaxes(0, 1).reshape(-1)
    return np.concatenate([np.arange(first), first + found])


def columns(tiles: Tiles) -> np.ndarray:
    """Where each column lies in the file."""
    return _tile(tiles, 0)


def group_qkv(kv: int, each: int, size: int) -> Order:
    """q, k and v of all heads one after the other, where transformers has for every head of keys its q, then its k and v."""
    return partial(_group_qkv, kv, each, size)


def _group_qkv(kv: int, each: int, size: int) -> np.ndarray:
    q = np.arange(kv * each * size).reshape(kv, each, size)
    k = kv * each * size + np.arange(kv * size).reshape(kv, 1, size)
    return np.concatenate([q, k, k + kv * size], axis=1).reshape(-1)


def alike(files: GGUFFiles, piece: GGUFPiece) -> bool:
    """Is all of it of one type?"""
    return len({files.tensors[p.source].type.name for p in piece.parts}) < 2


def dtype(files: GGUFFiles, piece: GGUFPiece) -> str:
    """Of what `read` gives, but for blocks."""
    kind = files.tensors[piece.source].type.dense
    return kind if kind and piece.value is None and alike(files, piece) else "float32"


def read(files: GGUFFiles, piece: GGUFPiece, rows: slice | None) -> np.ndarray:
    """The values, or some rows of them: float32 where something is changed or decoded, blocks where they are kept, and else
    a view of the file if rows lie in order."""
    kind = files.tensors[piece.source].type
    if piece.parts:
        same = alike(files, piece)
        made = [(read(files, p, None), files.tensors[p.source].type) for p in piece.parts]
        return np.concatenate([raw if same else _wide(raw, kind) for raw, kind in made])[rows or slice(None)]
    raw: np.ndarray = files.read(piece.source)
    if piece.by_head:
        return _merge_heads(raw, piece, kind)[rows or slice(None)]
    if piece.index is not None:
        raw = raw[piece.index]
    decoded = not kind.dense and not piece.coded
    if decoded and len(piece.shape) != 2:  # few: vectors, and what convolutions multiply by
        raw, decoded = _dequantize(raw, kind), False
    if not decoded and not piece.coded and raw.size == math.prod(piece.shape):
        raw = raw.reshape(piece.shape)
    raw = _some(raw, piece, rows)
    if decoded:
        raw = _dequantize(raw, kind)
    if piece.value is not None:
        raw = piece.value(_wide(raw, kind))
    return raw if piece.tiles is None or piece.coded else raw[:, columns(piece.tiles)]


def _some(raw: np.ndarray, piece: GGUFPiece, rows: slice | None) -> np.ndarray:
    if piece.order is not None:
        order = piece.order()
        return raw[order if rows is None else order[rows]]
    raw = raw[piece.first : piece.first + piece.shape[0]]
    return raw if rows is None else raw[rows]


def _dequantize(raw: np.ndarray, kind: Type) -> np.ndarray:
    made: np.ndarray = blocks.dense(kind, raw.reshape(-1, raw.shape[-1])).reshape(*raw.shape[:-1], -1)
    return made


def _wide(raw: np.ndarray, kind: Type) -> np.ndarray:
    if kind.dense == "bfloat16" and raw.dtype == np.uint16:
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.astype(np.float32)


def _merge_heads(raw: np.ndarray, piece: GGUFPiece, kind: Type) -> np.ndarray:
    """The matrices of all heads as one."""
    if not kind.dense:
        raw = _dequantize(raw, kind)
    return (raw.swapaxes(1, 2) if piece.swapped else raw).reshape(piece.shape)
