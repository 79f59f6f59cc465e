"""What every kind of checkpoint gives its readers, and the one way to open any of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from thalweg.checkpoint import gguf, native, safetensors
from thalweg.checkpoint.pieces import experts_apart
from thalweg.checkpoint.safetensors import FileSpan


class Weights(Protocol):
    """Every tensor of a model, found by name."""

    path: Path

    @property
    def names(self) -> list[str]: ...

    @property
    def bytes(self) -> int:
        """Of all tensors."""

    def file(self, name: str) -> Path:
        """The file that holds the tensor, for messages."""

    def entry(self, name: str) -> tuple[str, tuple[int, ...]]:
        """(dtype name, shape). CheckpointError if there is no such tensor."""

    def read(self, name: str, rows: slice | None = None, cols: slice | None = None) -> np.ndarray:
        """The tensor, or some rows (first dimension) and columns (second) of it. dtypes numpy lacks come as unsigned integers
        of the same width."""

    def span(self, name: str, rows: slice | None = None) -> FileSpan | None:
        """The bytes of the tensor, or of some rows of it, where they lie side by side in a file as `read` gives them."""

    def forget(self, name: str) -> None:
        """The tensor's pages no longer count as this process's memory; reading it brings them back."""


class TensorHeaders(Mapping[str, tuple[str, tuple[int, ...]]]):
    """What headers say of a checkpoint's tensors: name -> (dtype, shape). Small ones may be read: orders of inputs, settings.
    It travels between processes as the path of its files."""

    def __init__(self, path: str | Path) -> None:
        self._files = open_weights(path)
        self._entries = {name: self._files.entry(name) for name in self._files.names}

    def __getitem__(self, name: str) -> tuple[str, tuple[int, ...]]:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __reduce__(self) -> tuple[type[TensorHeaders], tuple[Path]]:
        return TensorHeaders, (self._files.path,)

    def read(self, name: str) -> np.ndarray:
        """A copy of the values, of dtypes that numpy lacks as unsigned integers."""
        found = self._files.read(name).copy()
        self._files.forget(name)
        return found


class CombinedWeights:
    """The tensors of a model and of folders of its own, those of a folder as FOLDER/NAME."""

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
    """Of a model directory, a GGUF file, or the params.json of a folder of Mistral's. folders: of the directory's own, which
    hold tensors too. CheckpointError names file and reason."""
    if gguf.is_gguf(path):
        return gguf.open_model(path)
    if native.is_native(path):
        return native.open_model(path)
    model = experts_apart(safetensors.open_checkpoint(path))
    if not folders:
        return model
    return CombinedWeights(model, {folder: safetensors.open_checkpoint(Path(path) / folder) for folder in folders})
