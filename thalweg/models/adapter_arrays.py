"""Arrays of an adapter for one slot, on the host, and those of experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from thalweg.checkpoint.adapters.base import LowRank, StackedLowRank, largest
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.adapter_experts import PARTS, ExpertsTarget
from thalweg.models.adapters import EXTENDED, Target

HINT = "; for experts start the engine with --lora-target-modules that names the module that holds them, such as experts"
SWITCHES = ("ranks", "vectors", "set")
"""Arrays that change nothing where they are zero, whatever the others hold."""


@dataclass(slots=True)
class TargetArrays:
    """Arrays of one slot of a target, by the names and in the shapes of its `allocate`. On the host. Absent ones are zeros."""

    arrays: dict[str, torch.Tensor]
    level: int = 0
    """Least level of the part `Adapters` in steps with it."""

    @classmethod
    def zeros(cls, target: Target, rank: int, dtype: torch.dtype, level: int) -> TargetArrays:
        """Arrays of a slot for an adapter that does not change the target."""
        parts = len(target.sources)
        arrays = {
            "a": torch.zeros(parts * rank, target.inputs, dtype=dtype),
            "b": torch.zeros(rank, sum(target.rows), dtype=dtype),
            "ranks": torch.zeros(parts, dtype=torch.int32),
        }
        return cls(arrays, level)


def check_range(name: str, scale: float, dtype: torch.dtype, *values: Any) -> None:
    """CheckpointError if values of A or of scale * B are too large for dtype."""
    if any(np.abs(largest(np.asarray(x))).max() > torch.finfo(dtype).max for x in values):
        raise CheckpointError(f"{name}: A, or B times its scale {scale:g} (alpha, rank), overflows {str(dtype).split('.')[-1]}")


class ExpertsLayout:
    """The arrays of experts while an adapter's updates are added."""

    def __init__(self, targets: Mapping[str, ExpertsTarget], rank: int, dtype: torch.dtype, tensor_rank: int) -> None:
        """targets, rank: as in `AdapterPlan`. tensor_rank: as in `adapter_layout.lay_out`."""
        self._targets, self._rank, self._dtype, self._tensor_rank = targets, rank, dtype, tensor_rank
        self._places = {
            source.name: (name, expert, part)
            for name, target in targets.items() for part in PARTS for expert, source in enumerate(target.sources(part))
        }  # fmt: skip
        self.arrays: dict[str, TargetArrays] = {}

    def add_matrix(self, name: str, module: LowRank, known: str) -> bool:
        """One matrix of one expert. False: it is none. Errors as `lay_out`."""
        if known not in self._places:
            return False
        if module.magnitude is not None or module.bias is not None:
            raise UnsupportedModelError(f"{name}: DoRA and biases of experts are not served")
        target, expert, part = self._places[known]
        self._put(name, target, expert, part, module.a, module.b, module.scale)
        return True

    def add_stack(self, name: str, update: StackedLowRank, known: str | None) -> None:
        """A tensor of all experts, gate and up or down, by its shape."""
        holder = None if known is None else known.removesuffix(".weight")
        while holder is not None and holder.endswith(".base_layer"):
            holder = holder.removesuffix(".base_layer")
        target = self._targets.get(holder or "")
        if target is None:
            raise UnsupportedModelError(f"{name}: the model has no experts of this name that adapters may change{HINT}")
        (experts, outputs, _), inputs = update.b.shape, update.a.shape[2]
        fits = {(2 * target.inner, target.hidden): ("gate", "up"), (target.hidden, target.inner): ("down",)}
        parts = fits.get((outputs, inputs)) if experts == target.experts else None
        if parts is None:
            raise CheckpointError(
                f"{name}: {experts} experts of {outputs} outputs and {inputs} inputs are adapted, and the model has "
                f"{target.experts}, of the shapes {' and '.join(str(list(shape)) for shape in fits)}"
            )
        rows = outputs // len(parts)
        for expert in range(experts):
            for i, part in enumerate(parts):
                b = update.b[expert, i * rows : (i + 1) * rows]
                self._put(f"{name} ({part} of expert {expert})", holder or "", expert, part, update.a[expert], b, update.scale)

    def _put(self, name: str, holder: str, expert: int, part: str, a: Any, b: Any, scale: float) -> None:
        target = self._targets[holder]
        source = target.sources(part)[expert]
        if (len(b), a.shape[1]) != source.shape:
            raise CheckpointError(
                f"{name}: A of shape {list(a.shape)} and B of shape {list(b.shape)} do not fit the model's matrix of shape "
                f"{list(source.shape)}: the adapter belongs to another model"
            )
        scaled = torch.from_numpy(np.ascontiguousarray(b)) * scale
        check_range(name, scale, self._dtype, a, scaled)
        if holder not in self.arrays:
            types = {"ranks": torch.int32}
            shapes = target.shapes(self._rank)
            result = {k: torch.zeros(shape, dtype=types.get(k, self._dtype)) for k, shape in shapes.items()}
            self.arrays[holder] = TargetArrays(result, EXTENDED)
        held, index, rank = self.arrays[holder].arrays, PARTS.index(part), len(a)
        if held["ranks"][expert, index]:
            raise CheckpointError(f"{name}: another tensor names the same matrix of the model: keep one of the two")
        first, here = self._rank if part == "up" else 0, target.inner_here
        mine = slice(here * self._tensor_rank, here * (self._tensor_rank + 1))
        a, scaled = (a[:, mine], scaled) if part == "down" else (a, scaled[mine])
        at = slice(here, None) if part == "up" else slice(0, len(scaled))
        kind = "down" if part == "down" else "gate_up"
        held[f"{kind}_a"][expert, first : first + rank] = torch.from_numpy(np.ascontiguousarray(a))
        held[f"{kind}_b"][expert, :rank, at] = scaled.T
        held["ranks"][expert, index] = rank
