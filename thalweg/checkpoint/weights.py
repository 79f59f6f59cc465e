"""What every kind of checkpoint gives its readers, and the one way to open any of them."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np

from thalweg.checkpoint import gguf, safetensors
from thalweg.checkpoint.pieces import experts_apart


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

    def forget(self, name: str) -> None:
        """The tensor's pages no longer count as this process's memory; reading it brings them back."""


def open_weights(path: str | Path) -> Weights:
    """Of a model directory or a GGUF file. CheckpointError names file and reason."""
    if gguf.is_gguf(path):
        return gguf.open_model(path)
    return experts_apart(safetensors.open_checkpoint(path))
