"""The tensors of a GGUF file, with transformers' names and values."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from thalweg.checkpoint.gguf import pieces
from thalweg.checkpoint.gguf.translate import translate
from thalweg.checkpoint.gguf.types import Type
from thalweg.errors import CheckpointError

logger = logging.getLogger(__name__)


class GGUFCheckpoint:
    """Every tensor, by transformers' name. Same interface as `checkpoint.safetensors.Checkpoint`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        result = translate(path)
        self._files, self._pieces = result.files, result.pieces
        decoded = [n for n, p in self._pieces.items() if len(p.shape) > 1 and not p.coded and not self._type(n).dense]
        if decoded:
            kinds = ", ".join(sorted({self._type(n).name for n in decoded}))
            logger.warning(
                "%s: %d matrices (%s) are decoded while they are loaded, and take the memory of dense ones: first %s",
                path.name, len(decoded), kinds, decoded[0],
            )  # fmt: skip

    def _type(self, name: str) -> Type:
        return self._files.tensors[self._pieces[name].source].type

    @property
    def names(self) -> list[str]:
        return sorted(self._pieces)

    @property
    def bytes(self) -> int:
        """Size of all tensors in the files."""
        return sum(t.end - t.begin for t in self._files.tensors.values())

    def __contains__(self, name: str) -> bool:
        return name in self._pieces

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def file(self, name: str) -> Path:
        """The file that holds the tensor, for messages."""
        return self._files.file(self._pieces[name].source)

    def entry(self, name: str) -> tuple[str, tuple[int, ...]]:
        """(dtype name, shape). Tensors in blocks are uint8, with bytes as the last dimension. CheckpointError for an unknown
        tensor."""
        if name not in self._pieces:
            raise CheckpointError(f"{self.path}: has no tensor {name!r}")
        piece = self._pieces[name]
        kind = self._type(name)
        if piece.coded:
            return "uint8", (*piece.shape[:-1], kind.row(piece.shape[-1]))
        return pieces.dtype(self._files, piece), piece.shape

    def read(self, name: str, rows: slice | None = None, cols: slice | None = None) -> np.ndarray:
        """The tensor, or a slice of its rows (first dimension) and columns (second). A view of the file if its layout fits,
        else a copy."""
        piece = self._pieces[name]
        raw = pieces.read(self._files, piece, rows)
        if cols is None:
            return raw
        if piece.coded or len(piece.shape) < 2:
            raise ValueError(f"{name}: columns asked of a tensor that has none")
        return raw[:, cols]

    def span(self, name: str, rows: slice | None = None) -> None:
        """None: values are in blocks, or in another order."""

    def forget(self, name: str) -> None:
        """Release the tensor's pages from this process's memory. Reading it maps them again."""
        piece = self._pieces[name]
        for part in piece.parts or (piece,):
            self._files.forget(part.source)
