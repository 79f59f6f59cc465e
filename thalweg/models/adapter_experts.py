"""Low-rank adapters of experts: a pair of matrices for each expert's gate, up and down. The kernel of the experts has a variant
that adds them, which reads the same packed weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thalweg.errors import UnsupportedModelError
from thalweg.hal import ops
from thalweg.hal.device import Device
from thalweg.hal.op import OF_BODIES, Binder, BoundOp
from thalweg.hal.step import Array
from thalweg.models.adapter_names import container, is_target
from thalweg.models.spec import MoE
from thalweg.models.weights import Source, Weight

if TYPE_CHECKING:
    from thalweg.models.adapters import AdapterPlan, AdapterRows
    from thalweg.models.context import Context
PARTS = ("gate", "up", "down")


@dataclass(frozen=True, slots=True)
class ExpertsTarget:
    """The experts of a layer, which adapters change."""

    gate_up: tuple[Source, ...]
    """Gate and up of each expert, in turn."""
    down: tuple[Source, ...]
    """One for each expert."""
    hidden: int
    inner: int
    ranks: int = 1
    """Each holds a share of every expert's inner values."""

    @property
    def inner_here(self) -> int:
        """Inner values of an expert, on this rank."""
        return self.inner // self.ranks

    @property
    def experts(self) -> int:
        return len(self.down)

    def sources(self, part: str) -> tuple[Source, ...]:
        """Those of one of PARTS, by expert."""
        return self.down if part == "down" else self.gate_up[PARTS.index(part) :: 2]

    def shapes(self, rank: int) -> Mapping[str, tuple[int, ...]]:
        """Of the arrays of a slot, by the names of `hal.ops.lora_experts`."""
        e, inner = self.experts, self.inner_here
        return {
            "gate_up_a": (e, 2 * rank, self.hidden), "gate_up_b": (e, rank, 2 * inner),
            "down_a": (e, rank, inner), "down_b": (e, rank, self.hidden), "ranks": (e, 3),
        }  # fmt: skip

    def allocate(self, plan: AdapterPlan, device: Device, dtype: str) -> dict[str, Any]:
        """Its arrays in the state."""
        shapes, slots = self.shapes(plan.rank), plan.adapters + 1
        return {k: device.alloc((slots, *shape), "int32" if k == "ranks" else dtype) for k, shape in shapes.items()}


class ExpertsAdapter:
    """Experts with adapters, for steps in which some sequence has one. Arguments as in `hal.ops.experts`. Ranks sum what it
    returns."""

    def __init__(self, ctx: Context, gate_up: Weight, down: Weight, op: BoundOp) -> None:
        """op: `hal.ops.lora_experts`."""
        assert ctx.adapters is not None
        self._name = container(gate_up.sources[0].name)
        inner, hidden = gate_up.sources[0].shape
        self._op = op
        ctx.adapters.experts[self._name] = ExpertsTarget(gate_up.sources, down.sources, hidden, inner, ctx.mesh.tensor.size)

    def __call__(self, x: Array, ids: Array, weights: Array, gate_up: Array, down: Array, rows: AdapterRows) -> Array:
        held = rows.held[self._name]
        arrays = (held[k] for k in ("gate_up_a", "gate_up_b", "down_a", "down_b", "ranks"))
        out: Array = self._op(x, ids, weights, gate_up, down, rows.slots, *arrays)
        return out


def adapt_experts(ctx: Context, spec: MoE, gate_up: Weight, down: Weight, op: BoundOp) -> ExpertsAdapter | None:
    """None: `lora_target_modules` does not name the experts. UnsupportedModelError if it does and they cannot have adapters.
    op: the bound `hal.ops.experts`, whose packed weights are shared."""
    name = container(gate_up.sources[0].name)
    if ctx.adapters is None or ctx.adapters.modules is None or not is_target(name, ctx.adapters.modules):
        return None
    why = adapted = None
    if not spec.gated or spec.biases or spec.inward or spec.zero or spec.latent:
        why = "experts without gates, or with biases"
    elif ctx.tp_invariant:
        why = "tp_invariant, which computes their choices apart"
    elif spec.placed and ctx.mesh.tensor.size > 1:
        why = "experts whole on ranks (--enable-expert-parallel)"
    elif (adapted := _offer(ctx.binder, op)) is None:
        why = f"the kernel {op.choice.kernel}, as the device has none that adds adapters and shares its weights"
    if adapted is None:
        raise UnsupportedModelError(f"lora_target_modules: {name}: adapters of experts are not served with {why}")
    return ExpertsAdapter(ctx, gate_up, down, adapted)


def _offer(binder: Binder, op: BoundOp) -> BoundOp | None:
    """`lora_experts` with the facts and the packed weights of this `experts`. None: no kernel has them."""
    facts = dict(op.choice.spec)
    if op.pack == OF_BODIES:
        return binder.of(()).bind(ops.lora_experts, **facts)
    return binder.offer(ops.lora_experts, op, **facts)
