"""Low-rank adapters of linear layers (LoRA, Hu et al. 2021): y + B (A x), each token with the adapter of its sequence.

A linear layer that is built where a `Room` is planned has a `Target`. The adapters themselves lie in the state, several per
target, so that an executable is compiled once and adapters come and go between its steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from thalweg.hal import ops
from thalweg.hal.device import Device
from thalweg.hal.step import Array

if TYPE_CHECKING:
    from thalweg.models.context import Context
    from thalweg.models.flow import Flow
    from thalweg.models.weights import Source, Weight


@dataclass(slots=True)
class Room:
    """What is planned for adapters, and the targets found while a model is built."""

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

    def shapes(self, room: Room) -> dict[str, tuple[int, ...]]:
        """Of the arrays in the state. Slot 0 is that of sequences without an adapter. a: the A of every source, one above the
        other, each of `room.rank` rows. b: the B of every source likewise, scaled by alpha / rank."""
        slots = room.adapters + 1
        return {"a": (slots, len(self.sources) * room.rank, self.inputs), "b": (slots, sum(self.rows), room.rank)}


class Adapter:
    """What a linear layer adds to its product. y [T, outputs], x [T, inputs] -> [T, outputs]."""

    def __init__(self, ctx: Context, weight: Weight, *, columns: bool) -> None:
        """columns: as in `Target`."""
        assert ctx.adapters is not None
        size = ctx.comm.size
        shapes = [s.shape if weight.shard is None else _divided(s.shape, weight.shard, size) for s in weight.sources]
        self.name, self._rank = weight.sources[0].name, ctx.adapters.rank
        self.target = Target(weight.sources, shapes[0][1], tuple(shape[0] for shape in shapes), columns and size > 1)
        ctx.adapters.targets[self.name] = self.target
        self._shrink, self._expand = ctx.bind(ops.lora_shrink), ctx.bind(ops.lora_expand)

    def __call__(self, y: Array, x: Array, flow: Flow, read: bool) -> Array:
        """read: x has only the rows that are read."""
        assert flow.slots is not None
        slots, pair = flow.cut(flow.slots) if read else flow.slots, flow.adapters[self.name]
        low = self._shrink(x, slots, pair["a"])
        if len(self.target.rows) == 1:
            out: Array = self._expand(y, low, slots, pair["b"])
            return out
        parts = zip(y.split(self.target.rows, -1), low.split(self._rank, -1), _rows(pair["b"], self.target.rows), strict=True)
        return torch.cat([self._expand(part.contiguous(), down.contiguous(), slots, b) for part, down, b in parts], -1)


def _rows(b: Array, rows: tuple[int, ...]) -> tuple[Array, ...]:
    """b [slots, outputs, rank], as the sources' own matrices."""
    return tuple(part.contiguous() for part in b.split(rows, 1))


def _divided(shape: tuple[int, ...], dim: int, size: int) -> tuple[int, ...]:
    return (*shape[:dim], shape[dim] // size, *shape[dim + 1 :])


def allocate(room: Room | None, device: Device, dtype: str) -> dict[str, Any]:
    """The state of adapters: the arrays of every target, by its name. {} where no adapters are planned."""
    if room is None:
        return {}
    return {
        name: {key: device.alloc(shape, dtype) for key, shape in target.shapes(room).items()}
        for name, target in room.targets.items()
    }


def slots_of(part: Any, token_seq: Array) -> Array | None:
    """i32[T]: each token's slot. None: no sequence of the step has an adapter."""
    return None if part is None else part.slot.index_select(0, token_seq)


Held = Mapping[str, Mapping[str, Array]]
"""As `allocate` gives them."""
