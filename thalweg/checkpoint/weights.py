"""The interface of all checkpoint formats, and the function that opens any of the formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from thalweg.checkpoint import gguf, native, safetensors
from thalweg.checkpoint.pieces import experts_apart
from thalweg.checkpoint.safetensors import FileSpan


class Weights(Protocol):
    """The tensors of a model, by name."""

    path: Path

    @property
    def names(self) -> list[str]: ...

    @property
    def bytes(self) -> int:
        """Size of all tensors."""

    def file(self, name: str) -> Path:
        """The file that holds the tensor, for messages."""

    def entry(self, name: str) -> tuple[str, tuple[int, ...]]:
        """(dtype name, shape). CheckpointError if there is no such tensor."""

    def read(self, name: str, rows: slice | None = None, cols: slice | None = None) -> np.ndarray:
        """The tensor, or a slice of its rows (first dimension) and columns (second). dtypes that numpy lacks are unsigned
        integers of the same width."""

    def span(self, name: str, rows: slice | None = None) -> FileSpan | None:
        """The byte range of the tensor, or of a slice of its rows, in a file. None: `read`'s bytes are not contiguous there."""

    def forget(self, name: str) -> None:
        """Release the tensor's pages from this process's memory. Reading it maps them again."""


class TensorHeaders(Mapping[str, tuple[str, tuple[int, ...]]]):
    """Headers of a checkpoint's tensors: name -> (dtype, shape). Small tensors may be read: orders of inputs, settings. Between
    processes it is pickled as its path."""

    def __init__(self, path: str | Path) -> None:
        self._files = open_weights(path)
        self._entries = {name: self._files.entry(name) for name in self._files.names}

    def __getitem__(self, name: str) -> tuple[str, tuple[int, ...]]:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __reduce__(self) -> tuple[type[TensorHeaders], tuple[Any, ...]]:
        return TensorHeaders, (self._files.path,)

    def read(self, name: str) -> np.ndarray:
        """A copy of the values. dtypes that numpy lacks are unsigned integers."""
        found = self._files.read(name).copy()
        self._files.forget(name)
        return found


class CombinedWeights:
    """The tensors of a model and its subfolders. Those of a folder are named FOLDER/NAME."""

    def __init__(self, model: Weights, folders: Mapping[str, Weights]) -> None:
        self.path = model.path
        self._model, self._folders = model, folders

    @property
    def names(self) -> list[str]:
        return [*self._model.names, *(f"{folder}/{n}" for folder, each in self._folders.items() for n in each.names)]

    @property
    def bytes(self) -> int:
        return self._model.bytes + sum(each.bytes for each in self._folders.values())

    def _found(self, name: str) -> tuple[Weights, str]:
        folder, _, rest = name.rpartition("/")
        return (self._folders[folder], rest) if folder in self._folders else (self._model, name)

    def file(self, name: str) -> Path:
        holder, own = self._found(name)
        return holder.file(own)

    def entry(self, name: str) -> tuple[str, tuple[int, ...]]:
        holder, own = self._found(name)
        return holder.entry(own)

    def read(self, name: str, rows: slice | None = None, cols: slice | None = None) -> np.ndarray:
        holder, own = self._found(name)
        return holder.read(own, rows, cols)

    def span(self, name: str, rows: slice | None = None) -> FileSpan | None:
        holder, own = self._found(name)
        return holder.span(own, rows)

    def forget(self, name: str) -> None:
        holder, own = self._found(name)
        holder.forget(own)


def open_weights(path: str | Path, folders: Sequence[str] = ()) -> Weights:
    """The tensors of a model directory, a GGUF file, or a params.json in Mistral's format. folders: subfolders with further
    tensors. CheckpointError names file and reason."""
    if gguf.is_gguf(path):
        return gguf.open_model(path)
    if native.is_native(path):
        return native.open_model(path)
    model = experts_apart(safetensors.open_checkpoint(path))
    if not folders:
        return model
    return CombinedWeights(model, {folder: safetensors.open_checkpoint(Path(path) / folder) for folder in folders})
