"""Mixtures of experts in compiled code: the choice of experts, and products with weights packed as those of linear layers.

Rows are grouped by expert, and experts without a row are not read. A token's experts are summed in float32 in ascending order:
a token has the same bits in any batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg.backends.cpu.native import NativeLibrary
from thalweg.backends.cpu.native.linear import NAMES, PANEL, TYPES, NativeLinear, PackedWeight, form_of
from thalweg.backends.cpu.native.rows import ACTS, BOUNDED, UNGATED, GateCode, gate_code
from thalweg.hal.op import Kernel, Pack
from thalweg.hal.ops.activation import SWIGLU_OAI
from thalweg.hal.weights import ONCE, QTensor, WeightFormat

SWIGLU = 3
"""Code of a gate that only experts have."""


def _code(act: str, gated: bool) -> GateCode | None:
    """An act of experts in compiled code. None: it has none."""
    if not gated:
        return GateCode(UNGATED[act]) if act in UNGATED else None
    return GateCode(SWIGLU) if act == SWIGLU_OAI else gate_code(act)


def _find_code(act: str, gated: bool) -> GateCode:
    found = _code(act, gated)
    if found is None:
        raise ValueError(f"experts: no compiled activation {act!r}, {'with' if gated else 'without'} a gate")
    return found


def _form(format: WeightFormat) -> str | None:
    """Why a weight of this format is not held."""
    form = f"rounds no inputs, not {format}" if format.act else form_of(format)
    return form if isinstance(form, str) else None


def _runs(spec: Mapping[str, Any]) -> str | None:
    act, gated = spec.get("act", "silu"), spec.get("gated", True)
    if _code(act, gated) is None:
        return f"runs {', '.join((*ACTS, *BOUNDED, SWIGLU_OAI) if gated else UNGATED)}, not {act}"
    if spec.get("down_biased"):
        return "adds no biases of down projections"
    if spec["dtype"] not in NAMES:
        return f"runs bfloat16 and float32, not {spec['dtype']}"
    return _form(spec["weight"]) or _form(spec["down_weight"])


def _runs_adapted(spec: Mapping[str, Any]) -> str | None:
    if spec.get("biased") or not spec.get("gated", True) or spec.get("elsewhere"):
        return "adapts experts with gates, without biases, that are all on this device"
    return _runs(spec)


def _whole(rows: int) -> int:
    """Outputs of a matrix of so many rows, in whole panels."""
    return -(-rows // PANEL) * PANEL


def _check_sizes(
    x: Tensor, ids: Tensor, weights: Tensor, gate_up: PackedWeight, down: PackedWeight, experts: int, between: int
) -> None:  # fmt: skip
    """ValueError unless these are of one layer. between: outputs of an expert's first matrix."""
    tokens, hidden = x.shape
    fits = gate_up.shape == (experts * _whole(between), hidden) and down.shape[0] == experts * _whole(hidden)
    if not fits or any(w.dtype not in (None, x.dtype) for w in (gate_up, down)):
        raise ValueError(f"experts: {x.dtype} {list(x.shape)} does not fit {gate_up.shape} and {down.shape}")
    if ids.shape != weights.shape or len(ids) != tokens or (ids.dtype, weights.dtype) != (torch.int32, torch.float32):
        raise ValueError(f"experts: {ids.dtype} {list(ids.shape)} chooses none for {tokens} tokens")


class NativeExperts:
    """The kernels' functions, over one open library."""

    def __init__(self, library: NativeLibrary) -> None:
        self._context, self._linear = library.context, NativeLinear(library)
        self._experts, self._route, self._adapted = library.experts, library.route, library.lora_experts

    def pack(self, w: QTensor) -> PackedWeight:
        """Each matrix begins a panel: where its rows do not fill the last one, rows of zeros do."""
        rows = w.shape[0] // w.matrices
        data, missing = dict(w.data), _whole(rows) - rows
        for name, a in w.data.items() if missing else ():
            if name not in ONCE:
                wide = a.new_zeros((w.matrices, rows + missing, *a.shape[1:]))
                wide[:, :rows] = a.view(w.matrices, rows, *a.shape[1:])
                data[name] = wide.flatten(0, 1)
        shape = (w.matrices * (rows + missing), w.shape[1])
        return self._linear.pack(QTensor(w.format, shape, data, w.matrices))

    def pack_mapped(self, parts: Sequence[np.ndarray], format: WeightFormat) -> PackedWeight | None:
        """Parts are matrices or halves: where all are of whole panels, the matrices are."""
        if any(len(p) % PANEL for p in parts):
            return None
        return self._linear.pack_mapped(parts, format)

    def pack_blocks(self, parts: Sequence[np.ndarray], kind: str, inputs: int, format: WeightFormat) -> PackedWeight | None:
        """Likewise, of a GGUF file's blocks."""
        if any(len(p) % PANEL for p in parts):
            return None
        return self._linear.pack_blocks(parts, kind, inputs, format)

    def run(
        self, x: Tensor, ids: Tensor, weights: Tensor, gate_up: PackedWeight, down: PackedWeight, bias: Tensor | None = None, *,
        experts: int, act: str = "silu", group: int = 0, down_group: int = 0, gated: bool = True,
    ) -> Tensor:  # fmt: skip
        """group, down_group: those that the weights were packed for."""
        x, ids, weights = x.contiguous(), ids.contiguous(), weights.contiguous()
        tokens, inner = len(x), down.shape[1]
        between, code = 2 * inner if gated else inner, _find_code(act, gated)
        _check_sizes(x, ids, weights, gate_up, down, experts, between)
        if bias is not None and (bias.dtype != x.dtype or bias.numel() != experts * 2 * inner):
            raise ValueError(f"experts: a bias of {bias.dtype} {list(bias.shape)} does not fit {experts} experts of {inner}")
        bias, out = None if bias is None else bias.contiguous(), torch.empty(x.shape, dtype=x.dtype)
        if tokens:
            self._experts(
                self._context, gate_up.handle, down.handle, experts, inner, *code, TYPES[x.dtype], x.data_ptr(), tokens,
                ids.data_ptr(), weights.data_ptr(), ids.shape[1], out.data_ptr(),
                None if bias is None else bias.data_ptr(),
            )  # fmt: skip
        return out

    def run_adapted(
        self, x: Tensor, ids: Tensor, weights: Tensor, gate_up: PackedWeight, down: PackedWeight, slots: Tensor,
        gate_up_a: Tensor, gate_up_b: Tensor, down_a: Tensor, down_b: Tensor, ranks: Tensor, *, experts: int,
        act: str = "silu", group: int = 0, down_group: int = 0,
    ) -> Tensor:  # fmt: skip
        """See `lora_experts`. group, down_group: as in `run`."""
        x, ids, weights, slots = x.contiguous(), ids.contiguous(), weights.contiguous(), slots.contiguous()
        (tokens, hidden), inner, (count, _, rank, _) = x.shape, down.shape[1], down_a.shape
        _check_sizes(x, ids, weights, gate_up, down, experts, 2 * inner)
        arrays = (gate_up_a, gate_up_b, down_a, down_b)
        shapes = ((2 * rank, hidden), (rank, 2 * inner), (rank, inner), (rank, hidden))
        if any(a.shape != (count, experts, *s) or a.dtype != x.dtype for a, s in zip(arrays, shapes, strict=True)):
            raise ValueError(f"lora_experts: adapters of {[list(a.shape) for a in arrays]} do not fit {experts} experts")
        if ranks.shape != (count, experts, 3) or slots.shape != (tokens,) or {ranks.dtype, slots.dtype} != {torch.int32}:
            raise ValueError(f"lora_experts: ranks of {list(ranks.shape)} and {list(slots.shape)} slots for {tokens} tokens")
        if not all(a.is_contiguous() for a in (*arrays, ranks)):
            raise ValueError("lora_experts: adapters are contiguous")
        out = torch.empty(x.shape, dtype=x.dtype)
        if tokens:
            self._adapted(
                self._context, gate_up.handle, down.handle, experts, inner, *_find_code(act, True), TYPES[x.dtype],
                x.data_ptr(), tokens, ids.data_ptr(), weights.data_ptr(), ids.shape[1], out.data_ptr(), slots.data_ptr(),
                *(a.data_ptr() for a in arrays), ranks.data_ptr(), rank,
            )  # fmt: skip
        return out

    def route(
        self, logits: Tensor, bias: Tensor | None = None, *, k: int, scores: str, renormalise: bool, scale: float = 1.0,
        groups: int = 1, top_groups: int = 1, group_best: int = 2,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        logits, bias = logits.contiguous(), None if bias is None else bias.contiguous()
        rows, experts = logits.shape
        if group_best not in (1, 2):
            raise ValueError(f"route: groups count as much as their best one or two, not {group_best}")
        if logits.dtype != torch.float32 or not 0 < k <= experts or experts % groups or not 0 < top_groups <= groups:
            raise ValueError(f"route: {k} of {logits.dtype} {list(logits.shape)} in {groups} groups")
        if bias is not None and (bias.dtype != torch.float32 or bias.shape != (experts,)):
            raise ValueError(f"route: a bias of {bias.dtype} {list(bias.shape)} does not fit {experts} experts")
        ids, weights = torch.empty(rows, k, dtype=torch.int32), torch.empty(rows, k, dtype=torch.float32)
        if rows:
            self._route(
                self._context, logits.data_ptr(), None if bias is None else bias.data_ptr(), rows, experts, k,
                int(scores == "sigmoid"), int(renormalise), scale, groups, top_groups, group_best, ids.data_ptr(),
                weights.data_ptr(),
            )  # fmt: skip
        return ids, weights


def _scores(spec: Mapping[str, Any]) -> str | None:
    if "logits" in spec:
        return f"reads logits in float32, not {spec['logits']}"
    known = ("softmax", "sigmoid")
    return None if spec["scores"] in known else f"scores are {' and '.join(known)}, not {spec['scores']}"


def kernels(library: NativeLibrary) -> tuple[Kernel, ...]:
    ops, name = NativeExperts(library), f"native-{library.level}"
    pack = Pack(ops.pack, ops.pack_mapped, ops.pack_blocks)
    return (
        Kernel("experts", name, ops.run, _runs, pack, batch_invariant=True),
        Kernel("lora_experts", name, ops.run_adapted, _runs_adapted, pack, batch_invariant=True),
        Kernel("route", name, ops.route, _scores, batch_invariant=True),
    )
