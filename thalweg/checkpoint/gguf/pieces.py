"""The source of a tensor of transformers: a tensor of the file or some rows, and the inverse of the converter's changes."""

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
"""Returns the file's row for each row. Called when the tensor is read."""
Tiles = tuple[int, int, int]
"""(key heads, value heads per key head, values per head). Files store the first value head of every key head, then the second
of each. Transformers groups all value heads of a key head."""


@dataclass(frozen=True, slots=True, eq=False)
class GGUFPiece:
    source: str
    shape: tuple[int, ...]
    """Shape in transformers. The file may have the same values in other dimensions."""
    index: int | None = None
    """Index of the matrix in a tensor with several."""
    first: int = 0
    """Index of its first row in the source."""
    order: Order | None = None
    """Order of the rows. If set, `first` is not used."""
    tiles: Tiles | None = None
    """Columns of value heads, in the files' order."""
    value: Callable[[np.ndarray], np.ndarray] | None = None
    """Inverse of the converter's change, elementwise in float32."""
    by_head: bool = False
    """The source has a matrix per head. They are joined."""
    swapped: bool = False
    """Each of those matrices is transposed."""
    coded: bool = False
    """Stored as the file's blocks."""
    parts: tuple[GGUFPiece, ...] = ()
    """Pieces to concatenate. If set, only `shape`, `coded` and `source` (of the first piece) are valid here."""


PART = "#"
"""Separates the name of a tensor made of several pieces from the number of a piece."""


def subtract_one(values: np.ndarray) -> np.ndarray:
    """Undoes the 1 added to norms' weights."""
    return values - np.float32(1)


def logarithm(values: np.ndarray) -> np.ndarray:
    """A_log from rates stored as -exp(A_log)."""
    found: np.ndarray = np.log(-values)
    return found


def deinterleave_rows(rows: int, heads: int) -> Order:
    """Undoes the interleaving of a head's two halves."""
    return partial(_deinterleave_rows, rows, heads)


def _deinterleave_rows(rows: int, heads: int) -> np.ndarray:
    found: np.ndarray = np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
    return found


def tile(tiles: Tiles, first: int = 0) -> Order:
    """Order of rows of value heads, after `first` rows in their usual order."""
    return partial(_tile, tiles, first)


def _tile(tiles: Tiles, first: int) -> np.ndarray:
    keys, each, size = tiles
    found: np.ndarray = np.arange(keys * each * size).reshape(each, keys, size).swapaxes(0, 1).reshape(-1)
    return np.concatenate([np.arange(first), first + found])


def columns(tiles: Tiles) -> np.ndarray:
    """The file's column for each column."""
    return _tile(tiles, 0)


def group_qkv(kv: int, each: int, size: int) -> Order:
    """Order of rows for files with all of q, then k, then v. Transformers has the q of each KV head, then its k and v."""
    return partial(_group_qkv, kv, each, size)


def _group_qkv(kv: int, each: int, size: int) -> np.ndarray:
    q = np.arange(kv * each * size).reshape(kv, each, size)
    k = kv * each * size + np.arange(kv * size).reshape(kv, 1, size)
    return np.concatenate([q, k, k + kv * size], axis=1).reshape(-1)


def alike(files: GGUFFiles, piece: GGUFPiece) -> bool:
    """Do all parts of the piece have one type?"""
    return len({files.tensors[p.source].type.name for p in piece.parts}) < 2


def dtype(files: GGUFFiles, piece: GGUFPiece) -> str:
    """The dtype of `read`'s result, except for blocks."""
    kind = files.tensors[piece.source].type.dense
    return kind if kind and piece.value is None and alike(files, piece) else "float32"


def read(files: GGUFFiles, piece: GGUFPiece, rows: slice | None) -> np.ndarray:
    """The values, or a slice of their rows: float32 if changed or decoded, blocks if stored as such, else a view of the file if
    rows are in order."""
    kind = files.tensors[piece.source].type
    if piece.parts:
        same = alike(files, piece)
        result = [(read(files, p, None), files.tensors[p.source].type) for p in piece.parts]
        return np.concatenate([raw if same else _wide(raw, kind) for raw, kind in result])[rows or slice(None)]
    raw: np.ndarray = files.read(piece.source)
    if piece.by_head:
        return _merge_heads(raw, piece, kind)[rows or slice(None)]
    if piece.index is not None:
        raw = raw[piece.index]
    decoded = not kind.dense and not piece.coded
    if decoded and len(piece.shape) != 2:  # few: vectors and convolution weights
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
    result: np.ndarray = blocks.dense(kind, raw.reshape(-1, raw.shape[-1])).reshape(*raw.shape[:-1], -1)
    return result


def _wide(raw: np.ndarray, kind: Type) -> np.ndarray:
    if kind.dense == "bfloat16" and raw.dtype == np.uint16:
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.astype(np.float32)


def _merge_heads(raw: np.ndarray, piece: GGUFPiece, kind: Type) -> np.ndarray:
    """Joins the matrices of all heads."""
    if not kind.dense:
        raw = _dequantize(raw, kind)
    return (raw.swapaxes(1, 2) if piece.swapped else raw).reshape(piece.shape)
