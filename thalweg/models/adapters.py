"""Low-rank adapters of linear layers (LoRA, Hu et al. 2021): y + B (A x), each token with the adapter of its sequence. Adapters
with DoRA or biases also scale y and add a vector.

A linear layer built with an `AdapterPlan` has a `Target`. The adapters themselves are in the state, several per target, so an
executable is compiled once and adapters come and go between its steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from thalweg.hal import ops
from thalweg.hal.device import Device
from thalweg.hal.step import Array
from thalweg.models.adapter_names import is_target
from thalweg.models.weights import Role, Source, Weight

if TYPE_CHECKING:
    from thalweg.models.adapter_experts import ExpertsTarget
    from thalweg.models.context import Context
    from thalweg.models.flow import Flow

EXTENDED = 1
"""Least level of the part `Adapters` in steps that compute more than y + B (A x) of linear layers."""
EMBED, HEAD = "embed", "head"
Held = Mapping[str, Mapping[str, Any]]
"""As `allocate` gives them."""


@dataclass(slots=True)
class AdapterPlan:
    """The plan for adapters, and the targets found while a model is built."""

    adapters: int
    """At most so many in the state at once."""
    rank: int
    """The largest of an adapter."""
    modules: Sequence[str] | None = None
    """As in `adapter_names.is_target`."""
    targets: dict[str, Target] = field(default_factory=dict)
    """Linear layers, by the name of their first matrix, and the output matrix as `HEAD`."""
    tables: dict[str, TableTarget] = field(default_factory=dict)
    """The embedding as `EMBED`."""
    projections: dict[str, ProjectionTarget] = field(default_factory=dict)
    """Layers of the classifier, by the name of their matrix."""
    experts: dict[str, ExpertsTarget] = field(default_factory=dict)
    """By the name of the module that holds them."""

    def includes(self, weight: Weight, stored: str = "") -> bool:
        """May adapters change this parameter? stored: as in `Target`."""
        names = (stored,) if stored else [name for source in weight.sources for name in source.names]
        return any(is_target(name, self.modules) for name in names)

    @property
    def every(self) -> Mapping[str, Target | TableTarget | ProjectionTarget | ExpertsTarget]:
        return {**self.targets, **self.tables, **self.projections, **self.experts}


@dataclass(frozen=True, slots=True)
class Target:
    """A linear layer that adapters change: its product is that of several matrices of the checkpoint, one above the other."""

    sources: tuple[Source, ...]
    inputs: int
    """On this rank."""
    rows: tuple[int, ...]
    """Outputs of each source, on this rank."""
    shard: int | None
    """The dimension of the matrices that ranks divide. 0 divides B by rows, 1 divides A by columns, None nothing."""
    ranks: int = 1
    biases: tuple[Source, ...] = ()
    """The bias of each source. (): the layer has none."""
    role: Role = "linear"
    stored: str = ""
    """The checkpoint's name of its matrix, if it is not that of its source: the output matrix of a tied model."""

    @property
    def sums(self) -> bool:
        """Do ranks add up their products? The base model's bias is then added to the sum."""
        return self.shard == 1

    def part(self, index: int, dim: int, rank: int) -> slice:
        """A rank's rows (dim 0) or columns (dim 1) of matrix `index`, among those of its source."""
        return self.sources[index].shard(dim, rank, self.ranks) if self.shard == dim else slice(None)

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
class TableTarget:
    """An embedding that adapters change: rows of E + B A, E [vocab, hidden]."""

    source: Source
    vocab: int
    hidden: int

    def allocate(self, plan: AdapterPlan, device: Device, dtype: str) -> dict[str, Any]:
        """Its arrays in the state: B as "table", and A for `hal.ops.lora_add`, whose own "a" is the identity."""
        slots = plan.adapters + 1
        return {
            "table": device.alloc((slots, self.vocab, plan.rank), dtype),
            "a": device.alloc((slots, plan.rank, plan.rank), dtype),
            "b": device.alloc((slots, plan.rank, self.hidden), dtype),
            "ranks": device.alloc((slots, 1), "int32"),
        }


@dataclass(frozen=True, slots=True)
class ProjectionTarget:
    """A layer of a classifier, which an adapter may replace."""

    weight: Source
    bias: Source | None
    role: Role

    def allocate(self, plan: AdapterPlan, device: Device, dtype: str) -> dict[str, Any]:
        """Its arrays in the state. "set": does the adapter replace it?"""
        slots = plan.adapters + 1
        return {
            "weight": device.alloc((slots, *self.weight.shape), dtype),
            "bias": device.alloc((slots, self.weight.shape[0]), dtype),
            "set": device.alloc((slots, 1), "int32"),
        }


@dataclass(frozen=True, slots=True)
class AdapterRows:
    """Which adapter each row of a step has. The arrays are those that `hal.ops.lora_rows` returns."""

    slots: Array
    order: Array
    starts: Array
    extended: bool
    """Is the step's level at least `EXTENDED`?"""
    held: Held


@dataclass(frozen=True, slots=True)
class SequenceSlots:
    """The adapter's slot of each pooled row, i32[S], in steps of the level `EXTENDED`."""

    slots: Array
    held: Held


class AdapterRowsBuilder:
    """Finds the `AdapterRows` of a step, once for all its layers."""

    def __init__(self, ctx: Context) -> None:
        assert ctx.adapters is not None
        self._rows = ctx.bind(ops.lora_rows, count=ctx.adapters.adapters + 1)

    def __call__(self, part: Any, token_seq: Array, held: Held | None, read: Array | None = None) -> AdapterRows | None:
        """part: `hal.parts.adapters.Adapters` of the step. held: as in `AdapterRows`. None, in and out: no sequence has an
        adapter. read i32[R]: the rows that are read. None: all tokens."""
        if part is None or held is None:
            return None
        found = self._rows(part.slot, token_seq) if read is None else self._rows(part.slot, token_seq, read)
        slots, order, starts = found
        return AdapterRows(slots, order, starts, part.level >= EXTENDED, held)


class LinearAdapter:
    """The adapter's addition to a linear layer's product. y [T, outputs], x [T, inputs] -> [T, outputs]."""

    def __init__(
        self, ctx: Context, weight: Weight, bias: Weight | None, *, name: str = "", stored: str = ""
    ) -> None:  # fmt: skip
        """stored: as in `Target`. name: in the plan, if not that of the first matrix."""
        assert ctx.adapters is not None
        size = ctx.mesh.tensor.size
        shapes = [s.shard_shape(weight.shard, size) for s in weight.sources]
        self.name = name or weight.sources[0].name
        self.target = Target(
            weight.sources, shapes[0][1], tuple(shape[0] for shape in shapes), weight.shard if size > 1 else None, size,
            () if bias is None else bias.sources, weight.role, stored,
        )  # fmt: skip
        known = ctx.adapters.targets.setdefault(self.name, self.target)
        assert known == self.target, f"{self.name}: two layers begin with this matrix, and are not alike"
        self._add, self._rescale = ctx.bind(ops.lora_add, rows=self.target.rows), ctx.bind(ops.lora_rescale)

    def __call__(self, y: Array, x: Array, flow: Flow | None, read: bool = False) -> Array:
        """y itself where the step adapts no sequence. read: x has only the sampled rows."""
        if flow is None:
            return y
        rows = flow.adapter_rows_read if read and flow.read is not None else flow.adapter_rows
        return y if rows is None else self.add(y, x, rows)

    def add(self, y: Array, x: Array, rows: AdapterRows) -> Array:
        held = rows.held[self.name]
        if rows.extended:
            y = self._rescale(y, rows.slots, held["vectors"])
        return self._add(y, x, rows.slots, rows.order, rows.starts, held["a"], held["b"], held["ranks"])


class TableAdapter:
    """The adapter's addition to embeddings. x [T, hidden], tokens i32[T] -> [T, hidden]."""

    def __init__(self, ctx: Context, weight: Weight) -> None:
        assert ctx.adapters is not None
        (source,) = weight.sources
        self._last, hidden = source.shape[0] - 1, source.shape[1]
        self._add = ctx.bind(ops.lora_add, rows=(hidden,))
        ctx.adapters.tables[EMBED] = TableTarget(source, source.shape[0], hidden)

    def __call__(self, x: Array, tokens: Array, rows: AdapterRows | None) -> Array:
        if rows is None or not rows.extended:
            return x
        held = rows.held[EMBED]
        low = held["table"][rows.slots.long(), tokens.clamp(0, self._last).long()]
        return self._add(x, low, rows.slots, rows.order, rows.starts, held["a"], held["b"], held["ranks"])


class ProjectionAdapter:
    """A layer of a classifier as adapters replace it. y [S, outputs] of the base model, x [S, inputs] -> [S, outputs]."""

    def __init__(self, ctx: Context, weight: Weight, bias: Weight | None) -> None:
        assert ctx.adapters is not None
        (source,) = weight.sources
        self._name = source.name
        ctx.adapters.projections[self._name] = ProjectionTarget(source, None if bias is None else bias.sources[0], weight.role)

    def __call__(self, y: Array, x: Array, slots: SequenceSlots | None) -> Array:
        if slots is None:
            return y
        held, at = slots.held[self._name], slots.slots.long()
        result = (held["weight"][at].to(torch.float32) * x.to(torch.float32).unsqueeze(1)).sum(-1)
        result = (result + held["bias"][at].to(torch.float32)).to(y.dtype)
        return torch.where((held["set"][at] > 0) & (at > 0).unsqueeze(1), result, y)


def allocate(plan: AdapterPlan | None, device: Device, dtype: str) -> dict[str, Any]:
    """The state of adapters: the arrays of every target, by its name. {} where no adapters are planned."""
    if plan is None:
        return {}
    return {name: target.allocate(plan, device, dtype) for name, target in plan.every.items()}
