"""Low-rank changes of a model's matrices, as its files are read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Adapter:
    """scale * B @ A is added to each matrix that a folder of the model's has an A and a B for, as its files are read."""

    folder: str
    scale: float


@dataclass(frozen=True, slots=True)
class StackedAdapter:
    """scale * B[task] @ A[task] is added to each matrix for which the model's files have an A f[tasks, rank, inputs] and a
    B f[tasks, outputs, rank]; to an embedding A[task] @ B[task], of A f[tasks, rows, rank] and B f[tasks, rank, size]."""

    task: int
    tasks: int
    rank: int
    scale: float

    @property
    def folder(self) -> str:
        """None: the tensors are among the model's."""
        return ""
