"""From an adapter's matrices, under checkpoint names, to the arrays of layers. Every matrix must be used: an adapter without
one of its matrices differs from the trained one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from thalweg.checkpoint.adapters.base import AdapterWeights, LowRank, largest
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.adapters import AdapterPlan, Target
from thalweg.models.weights import Source


@dataclass(slots=True)
class TargetArrays:
    """Arrays of one slot of a target, shaped as in `Target.allocate`. On the host."""

    a: torch.Tensor
    b: torch.Tensor
    ranks: torch.Tensor

    @classmethod
    def zeros(cls, target: Target, rank: int, dtype: torch.dtype) -> TargetArrays:
        """Arrays of a slot for an adapter that does not change the target."""
        return cls(
            torch.zeros(len(target.sources) * rank, target.inputs, dtype=dtype),
            torch.zeros(rank, sum(target.rows), dtype=dtype),
            torch.zeros(len(target.sources), dtype=torch.int32),
        )


def lay_out(
    adapter: AdapterWeights, room: AdapterPlan, rename: Callable[[str], str | None], dtype: torch.dtype
) -> dict[str, TargetArrays]:
    """The arrays of every target that the adapter changes, by its name. B holds the scale: it is multiplied in float32, then
    rounded to dtype. rename: the layers' name of a checkpoint's tensor (`Model.rename`), None for tensors they do not have.

    CheckpointError names a matrix unknown to the model, of another shape, given twice, or too large for dtype.
    UnsupportedModelError names an unsupported target, and an adapter of too large a rank."""
    if adapter.rank > room.rank:
        raise UnsupportedModelError(
            f"the adapter has rank {adapter.rank} and the engine has room for {room.rank}: start it with --max-lora-rank "
            f"(max_lora_rank) of at least {adapter.rank}"
        )
    found: dict[str, list[_TargetMatrix]] = {}
    for place in _sources(room):
        for stored in place.names:
            found.setdefault(stored, []).append(place)
    made: dict[str, TargetArrays] = {}
    changed: dict[tuple[str, int], str] = {}
    for name, module in adapter.modules.items():
        known = rename(name)
        places = [] if known is None else found.get(known, [])
        if not places:
            raise CheckpointError(f"{name}: the model has no linear layer of this name that adapters may change")
        covered = np.zeros(len(module.b), np.bool_)
        for place in places:
            rows = place.rows(name, module, known)
            covered[rows] = True
            if (other := changed.setdefault((place.name, place.index), name)) != name:
                raise CheckpointError(f"{name}: {other} names the same matrix of the model: keep one of the two")
            arrays = made.setdefault(place.name, TargetArrays.zeros(place.target, room.rank, dtype))
            rank, first = len(module.a), place.index * room.rank
            b = torch.from_numpy(module.b[rows]) * module.scale
            if any(np.abs(largest(x)).max() > torch.finfo(dtype).max for x in (module.a, b.numpy())):
                raise CheckpointError(
                    f"{name}: A, or B times its scale {module.scale:g} (alpha, rank), overflows {str(dtype).split('.')[-1]}"
                )
            outputs = sum(place.target.rows[: place.index])
            arrays.a[first : first + rank] = torch.from_numpy(module.a)
            arrays.b[:rank, outputs : outputs + len(b)] = b.T
            arrays.ranks[place.index] = rank
        if not covered.all():
            raise UnsupportedModelError(f"{name}: some rows of this matrix are not of a linear layer that adapters may change")
    return made


@dataclass(frozen=True, slots=True)
class _TargetMatrix:
    """A matrix of a target."""

    name: str
    """Of the target."""
    target: Target
    index: int
    source: Source

    @property
    def names(self) -> tuple[str, ...]:
        """Of the stored tensor that holds it."""
        view = self.source.within
        return (self.source.name,) if view is None else (self.source.name, view.name)

    def rows(self, name: str, module: LowRank, known: str | None) -> np.ndarray | slice:
        """Which rows of B, i64[outputs of the matrix] or a range of them, are this matrix's."""
        source, view = self.source, self.source.within
        if known == source.name or view is None:
            shape: tuple[int, ...] = source.checkpoint_shape
            rows: np.ndarray | slice = slice(source.first, source.first + source.shape[0])
        elif view.at is not None or view.flat or view.normed:
            raise UnsupportedModelError(f"{name}: adapters of this tensor, which is no matrix, are not served")
        else:
            shape = view.shape[::-1] if view.turned else view.shape
            rows = replace(view, turned=False).take(np.arange(shape[0])[:, None], source.shape[0])[:, 0]
        if (len(module.b), module.a.shape[1]) != shape:
            raise CheckpointError(
                f"{name}: A of shape {list(module.a.shape)} and B of shape {list(module.b.shape)} do not fit the model's "
                f"matrix of shape {list(shape)}: the adapter belongs to another model"
            )
        return rows


def _sources(room: AdapterPlan) -> Iterator[_TargetMatrix]:
    for name, target in room.targets.items():
        for i, source in enumerate(target.sources):
            yield _TargetMatrix(name, target, i, source)
