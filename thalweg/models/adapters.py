"""Low-rank adapters of linear layers (LoRA, Hu et al. 2021): y + B (A x), each token with the adapter of its sequence. Adapters
with DoRA or biases also scale y and add a vector.

A linear layer built with an `AdapterPlan` has a `Target`. The adapters themselves are in the state, several per target, so an
executable is compiled once and adapters come and go between its steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from thalweg.hal import ops
from thalweg.hal.device import Device
from thalweg.hal.step import Array
from thalweg.models.weights import Role, Source, Weight

if TYPE_CHECKING:
    from thalweg.models.context import Context
    from thalweg.models.flow import Flow

EXTENDED = 1
"""Least level of the part `Adapters` in steps that compute more than y + B (A x)."""


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
    biases: tuple[Source, ...] = ()
    """The bias of each source. (): the layer has none."""
    role: Role = "linear"

    def allocate(self, plan: AdapterPlan, device: Device, dtype: str) -> dict[str, Any]:
        """Its arrays in the state: "a", "b" and "ranks" for `hal.ops.lora_add`, "vectors" for `lora_rescale`. Slot 0 is that of
        sequences without an adapter."""
        slots, parts = plan.adapters + 1, len(self.sources)
        return {
            "a": device.alloc((slots, parts * plan.rank, self.inputs), dtype),
            "b": device.alloc((slots, plan.rank, sum(self.rows)), dtype),
            "ranks": device.alloc((slots, parts), "int32"),
            "vectors": device.alloc((slots, 2, sum(self.rows)), "float32"),
        }


@dataclass(frozen=True, slots=True)
class AdapterRows:
    """Which adapter each row of a step has. The arrays are those that `hal.ops.lora_rows` returns."""

    slots: Array
    order: Array
    starts: Array
    extended: bool
    """Is the step's level at least `EXTENDED`?"""


class AdapterRowsBuilder:
    """Finds the `AdapterRows` of a step, once for all its layers."""

    def __init__(self, ctx: Context) -> None:
        assert ctx.adapters is not None
        self._rows = ctx.bind(ops.lora_rows, count=ctx.adapters.adapters + 1)

    def __call__(self, part: Any, token_seq: Array, read: Array | None = None) -> AdapterRows | None:
        """part: `hal.parts.adapters.Adapters` of the step. None, in and out: no sequence has an adapter. read i32[R]: the rows
        that are read. None: all tokens."""
        if part is None:
            return None
        found = self._rows(part.slot, token_seq) if read is None else self._rows(part.slot, token_seq, read)
        slots, order, starts = found
        return AdapterRows(slots, order, starts, part.level >= EXTENDED)


class LinearAdapter:
    """The adapter's addition to a linear layer's product. y [T, outputs], x [T, inputs] -> [T, outputs]."""

    def __init__(self, ctx: Context, weight: Weight, bias: Weight | None, *, columns: bool) -> None:
        """columns: as in `Target`."""
        assert ctx.adapters is not None
        size = ctx.mesh.tensor.size
        shapes = [s.shard_shape(weight.shard, size) for s in weight.sources]
        self.name = weight.sources[0].name
        self.target = Target(
            weight.sources, shapes[0][1], tuple(shape[0] for shape in shapes), columns and size > 1,
            () if bias is None else bias.sources, weight.role,
        )  # fmt: skip
        known = ctx.adapters.targets.setdefault(self.name, self.target)
        assert known == self.target, f"{self.name}: two layers begin with this matrix, and are not alike"
        self._add, self._rescale = ctx.bind(ops.lora_add, rows=self.target.rows), ctx.bind(ops.lora_rescale)

    def __call__(self, y: Array, x: Array, flow: Flow | None, read: bool = False) -> Array:
        """y itself where the step adapts no sequence. read: x has only the sampled rows."""
        if flow is None:
            return y
        rows = flow.adapter_rows_read if read and flow.read is not None else flow.adapter_rows
        if rows is None:
            return y
        held = flow.adapters[self.name]
        if rows.extended:
            y = self._rescale(y, rows.slots, held["vectors"])
        return self._add(y, x, rows.slots, rows.order, rows.starts, held["a"], held["b"], held["ranks"])


def allocate(plan: AdapterPlan | None, device: Device, dtype: str) -> dict[str, Any]:
    """The state of adapters: the arrays of every target, by its name. {} where no adapters are planned."""
    if plan is None:
        return {}
    return {name: target.allocate(plan, device, dtype) for name, target in plan.targets.items()}


Held = Mapping[str, Mapping[str, Any]]
"""As `allocate` gives them."""
