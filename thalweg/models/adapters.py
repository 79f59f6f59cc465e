"""Low-rank adapters of linear layers (LoRA, Hu et al. 2021): y + B (A x), each token with the adapter of its sequence.

A linear layer built with an `AdapterPlan` has a `Target`. The adapters themselves are in the state, several per target, so an
executable is compiled once and adapters come and go between its steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from thalweg.hal import ops
from thalweg.hal.device import Device
from thalweg.hal.step import Array
from thalweg.models.weights import Source, Weight

if TYPE_CHECKING:
    from thalweg.models.context import Context
    from thalweg.models.flow import Flow


@dataclass(slots=True)
class AdapterPlan:
    """The plan for adapters, and the targets found while a model is built."""

    adapters: int
    """At most so many in the state at once."""
    rank: int
    """The largest of an adapter."""
    targets: dict[str, Target] = field(default_factory=dict)
    """By the name of their first matrix."""


@dataclass(frozen=True, slots=True)
class Target:
    """A linear layer that adapters change: its product is that of several matrices of the checkpoint, one above the other."""

    sources: tuple[Source, ...]
    inputs: int
    """On this rank."""
    rows: tuple[int, ...]
    """Outputs of each source, on this rank."""
    columns: bool
    """Do ranks divide the inputs? Then A is divided by columns, else B by rows."""

    def allocate(self, room: AdapterPlan, device: Device, dtype: str) -> dict[str, Any]:
        """Its arrays in the state. Slot 0 is that of sequences without an adapter. "a": the A of every source, one above the
        other, each of `room.rank` rows. "b": the B of each source, scaled by alpha / rank."""
        slots = room.adapters + 1
        return {
            "a": device.alloc((slots, len(self.sources) * room.rank, self.inputs), dtype),
            "b": [device.alloc((slots, rows, room.rank), dtype) for rows in self.rows],
        }


class LinearAdapter:
    """The adapter's addition to a linear layer's product. y [T, outputs], x [T, inputs] -> [T, outputs]."""

    def __init__(self, ctx: Context, weight: Weight, *, columns: bool) -> None:
        """columns: as in `Target`."""
        assert ctx.adapters is not None
        size = ctx.mesh.tensor.size
        shapes = [s.shard_shape(weight.shard, size) for s in weight.sources]
        self.name, self._rank = weight.sources[0].name, ctx.adapters.rank
        self.target = Target(weight.sources, shapes[0][1], tuple(shape[0] for shape in shapes), columns and size > 1)
        known = ctx.adapters.targets.setdefault(self.name, self.target)
        assert known == self.target, f"{self.name}: two layers begin with this matrix, and are not alike"
        self._shrink, self._expand = ctx.bind(ops.lora_shrink), ctx.bind(ops.lora_expand)

    def __call__(self, y: Array, x: Array, flow: Flow | None, read: bool = False) -> Array:
        """y itself where the step adapts no sequence. read: x has only the sampled rows."""
        if flow is None or flow.slots is None:
            return y
        slots, pair = flow.cut(flow.slots) if read else flow.slots, flow.adapters[self.name]
        low = self._shrink(x, slots, pair["a"])
        parts = zip(y.split(self.target.rows, -1), low.split(self._rank, -1), pair["b"], strict=True)
        made = [self._expand(part.contiguous(), down.contiguous(), slots, b) for part, down, b in parts]
        return made[0] if len(made) == 1 else torch.cat(made, -1)


def allocate(room: AdapterPlan | None, device: Device, dtype: str) -> dict[str, Any]:
    """The state of adapters: the arrays of every target, by its name. {} where no adapters are planned."""
    if room is None:
        return {}
    return {name: target.allocate(room, device, dtype) for name, target in room.targets.items()}


def slots_of(part: Any, token_seq: Array) -> Array | None:
    """i32[T]: each token's slot. None: no sequence of the step has an adapter."""
    return None if part is None else part.slot.index_select(0, token_seq)


Held = Mapping[str, Mapping[str, Any]]
"""As `allocate` gives them."""
