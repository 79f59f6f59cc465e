"""A low-rank change of a model's matrices."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Adapter:
    """scale * B @ A is added to each matrix that a folder of the model's has an A and a B for, as its files are read."""

    folder: str
    scale: float
