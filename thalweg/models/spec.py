"""What a parameter is, declared by the layer that uses it: where its values come from, how they are divided, who packs it.

The loader walks the tree of these; layers never see a file, and the loader never sees a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from thalweg.hal.step import Array
from thalweg.hal.weights import DENSE, QTensor, WeightFormat


@dataclass(frozen=True, slots=True)
class Source:
    """One tensor of the checkpoint, under the name the layer knows it by, with its whole (undivided) shape."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ParamSpec:
    """One parameter. Several sources are joined along the first dimension, each divided among ranks first."""

    sources: tuple[Source, ...]
    dtype: str
    shard: int | None = None
    """Dimension divided evenly among the ranks; None = every rank holds all of it."""
    pack: Callable[[QTensor], Any] | None = None
    """For matrices a kernel multiplies by: what it wants of them, once, at load."""
    pack_parts: Callable[[Sequence[np.ndarray], WeightFormat], Any] | None = None
    """The same, rounding included, straight from the checkpoint's tensors, where they hold `dtype`."""
    format: WeightFormat = DENSE
    """What such a matrix is rounded to before it is packed."""
    make: Callable[[], Array] | None = None
    """A computed table instead of stored values; then there are no sources."""
    dummy: Literal["normal", "ones", "zeros"] = "normal"
    """What load_format "dummy" fills it with."""

    def shape(self, size: int) -> tuple[int, ...]:
        """On one of `size` ranks."""
        parts = [divided(s.shape, self.shard, size) for s in self.sources]
        return (sum(p[0] for p in parts), *parts[0][1:])


Specs = Mapping[Any, "Specs | ParamSpec"]
"""Nested dicts of ParamSpec; the loaded parameters have the same keys."""


def divided(shape: tuple[int, ...], dim: int | None, size: int) -> tuple[int, ...]:
    """One rank's part of `shape`. ValueError if it does not divide evenly."""
    if dim is None or size == 1:
        return shape
    if shape[dim] % size:
        raise ValueError(f"dimension {dim} of {shape} does not divide among {size} ranks")
    return (*shape[:dim], shape[dim] // size, *shape[dim + 1 :])


def walk(specs: Specs) -> Iterator[tuple[tuple[Any, ...], ParamSpec]]:
    """Every parameter with its keys from the root, in order."""
    for key, value in specs.items():
        if isinstance(value, ParamSpec):
            yield (key,), value
        else:
            for keys, spec in walk(value):
                yield (key, *keys), spec
