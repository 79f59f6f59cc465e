"""Presents tensors of a checkpoint under other names, as parts, or in another order of rows. Rows in order are not copied.

It also splits joint tensors of all experts, which transformers 5 writes, into one tensor per expert.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from thalweg.checkpoint.safetensors import Checkpoint, FileSpan
from thalweg.errors import CheckpointError

FLOATS = ("float64", "float32", "float16", "bfloat16")
_EXPERTS = re.compile(r"(?P<at>.*\.experts)\.(?P<part>gate_up_proj|down_proj)")
"""One tensor for all experts: [experts, 2 inner, hidden], gate before up, and [experts, hidden, inner]."""
_SWITCH = re.compile(r"(?P<at>.*)\.switch_mlp\.(?P<part>(?:gate|up|down)_proj\.(?:weight|scales|biases))")
"""MLX's names of the same, dense or in codes: [experts, inner, hidden] and [experts, hidden, inner]."""


@dataclass(frozen=True, slots=True)
class TensorPiece:
    """The source of a tensor with a new name."""

    source: str
    shape: tuple[int, ...]
    index: int | None = None
    """Index of the matrix in a tensor with several."""
    first: int = 0
    """Index of its first row in the source."""
    heads: int = 0
    """Number of heads with interleaved rows: the two values of a RoPE pair are adjacent. 0 = not interleaved."""


class SlicedCheckpoint:
    """Same interface as `safetensors.Checkpoint`, for pieces of its tensors."""

    def __init__(self, whole: Checkpoint, pieces: Mapping[str, TensorPiece], path: Path | None = None) -> None:
        """path: the model's path in messages, if not the folder."""
        self.path, self._whole, self._pieces = path or whole.path, whole, pieces
        self._left = {p.source: set[str]() for p in pieces.values()}
        for name, piece in pieces.items():
            self._left[piece.source].add(name)

    @property
    def names(self) -> list[str]:
        return sorted(self._pieces)

    @property
    def bytes(self) -> int:
        return self._whole.bytes

    @property
    def values(self) -> int:
        return self._whole.values

    def __contains__(self, name: str) -> bool:
        return name in self._pieces

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def file(self, name: str) -> Path:
        return self._whole.file(self._pieces[name].source)

    def entry(self, name: str) -> tuple[str, tuple[int, ...]]:
        if name not in self._pieces:
            raise CheckpointError(f"{self.path}: has no tensor {name!r}")
        piece = self._pieces[name]
        return self._whole.entry(piece.source)[0], piece.shape

    def read(self, name: str, rows: slice | None = None, cols: slice | None = None) -> np.ndarray:
        piece = self._pieces[name]
        raw = self._whole.read(piece.source)
        if piece.index is not None:
            raw = raw[piece.index]
        if piece.shape:
            raw = raw[piece.first : piece.first + piece.shape[0]]
        if piece.heads:
            order = neighbours_apart(piece.shape[0], piece.heads)
            raw = raw[order if rows is None else order[rows]]
        elif rows is not None:
            raw = raw[rows]
        if cols is not None:
            if len(piece.shape) < 2:
                raise ValueError(f"{name}: columns asked of a tensor of shape {piece.shape}")
            raw = raw[:, cols]
        return raw

    def span(self, name: str, rows: slice | None = None) -> FileSpan | None:
        """As `Checkpoint.span`. None: the piece's rows are not contiguous."""
        piece = self._pieces[name]
        span, shape = self._whole.span(piece.source), self._whole.entry(piece.source)[1]
        if piece.heads or span is None:
            return None
        if not piece.shape:
            return span
        before, matrices = (0, shape[:1]) if piece.index is None else (piece.index * shape[1], shape[:2])
        row = span.count // max(1, math.prod(matrices))
        first, last, _ = (rows or slice(None)).indices(piece.shape[0])
        return span.part((before + piece.first + first) * row, max(0, last - first) * row)

    def forget(self, name: str) -> None:
        """Release a piece. The source's pages are released with its last piece."""
        source = self._pieces[name].source
        self._left[source].discard(name)
        if not self._left[source]:
            self._whole.forget(source)


def neighbours_apart(rows: int, heads: int) -> np.ndarray:
    """The file's row for each row, in a file that interleaves the two halves of each head."""
    found: np.ndarray = np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
    return found


def experts_apart(whole: Checkpoint) -> Checkpoint | SlicedCheckpoint:
    """The checkpoint with separate gate, up and down matrices per expert, where it has dense ones in a joint tensor. Other
    joint tensors are unchanged: gpt-oss, which also has biases, and Llama 4, with transposed matrices."""
    result: dict[str, TensorPiece] = {}
    for name in whole.names:
        found, (dtype, shape) = _EXPERTS.fullmatch(name), whole.entry(name)
        if (switch := _SWITCH.fullmatch(name)) is not None and len(shape) == 3:
            for e in range(shape[0]):
                result[f"{switch['at']}.experts.{e}.{switch['part']}"] = TensorPiece(name, shape[1:], e)
            continue
        if (
            found is None
            or len(shape) != 3
            or dtype not in FLOATS
            or f"{name}_bias" in whole
            or _is_transposed(whole, found["at"])
        ):
            result[name] = TensorPiece(name, shape)
            continue
        if found["part"] == "down_proj":
            parts = {"down_proj": (0, shape[1])}
        elif shape[1] % 2 == 0:
            parts = {"gate_proj": (0, shape[1] // 2), "up_proj": (shape[1] // 2, shape[1] // 2)}
        else:
            raise CheckpointError(f"{whole.file(name)}: tensor {name}: {shape[1]} rows cannot be gate and up of equal size")
        for e in range(shape[0]):
            for part, (first, rows) in parts.items():
                result[f"{found['at']}.{e}.{part}.weight"] = TensorPiece(name, (rows, shape[2]), e, first)
    return whole if result.keys() == set(whole.names) else SlicedCheckpoint(whole, result)


def _is_transposed(whole: Checkpoint, at: str) -> bool:
    """Are a layer's tensors [experts, hidden, 2 inner] and [experts, inner, hidden]? Their sizes decide."""
    names = [f"{at}.{part}" for part in ("gate_up_proj", "down_proj")]
    if not all(name in whole for name in names):
        return False
    (_, *first), (_, *second) = (whole.entry(name)[1] for name in names)
    return len(first) == len(second) == 2 and first == [second[1], 2 * second[0]]
