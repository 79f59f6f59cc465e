"""Norms, rotary positions and activations in compiled code, each one pass over its rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from thalweg.backends.cpu.native import NativeLibrary
from thalweg.backends.cpu.native.linear import NAMES, TYPES
from thalweg.hal.op import Kernel
from thalweg.hal.ops.activation import CLAMP, CUT, SITU

ACTS = {"silu": 0, "gelu_tanh": 1, "gelu": 2}
ALONE = 8
"""Added to these where nothing is multiplied."""
BOUNDED = {CLAMP: 5, CUT: 6, SITU: 7}
"""Prefixes of acts with bounds."""
UNGATED = {**{act: code + ALONE for act, code in ACTS.items()}, "relu2": 4 + ALONE}


class GateCode(NamedTuple):
    """An activation as compiled code has it: its number, and bounds where it has some (`Rows` of core.h)."""

    code: int
    most: float = 0.0
    most_up: float = 0.0


def gate_code(act: str) -> GateCode | None:
    """The code of a gated act. None: compiled code has none."""
    for prefix, code in BOUNDED.items():
        if act.startswith(prefix):
            return GateCode(code, *map(float, act.removeprefix(prefix).split("_")))
    return GateCode(ACTS[act]) if act in ACTS else None


def _find_code(act: str) -> GateCode:
    found = gate_code(act)
    if found is None:
        raise ValueError(f"act_and_mul: no compiled gate {act!r}; known: {', '.join((*ACTS, *BOUNDED))}")
    return found


def _supports_dtype(spec: Mapping[str, Any]) -> str | None:
    return None if spec["dtype"] in NAMES else f"runs bfloat16 and float32, not {spec['dtype']}"


def _gates(spec: Mapping[str, Any]) -> str | None:
    act = spec.get("act", "silu")
    if gate_code(act) is None:
        return f"runs {', '.join((*ACTS, *BOUNDED))}, not {act}"
    return _supports_dtype(spec)


class NativeRowOps:
    """The kernels' functions, over one open library."""

    def __init__(self, library: NativeLibrary) -> None:
        self._context, self._library = library.context, library
        self._norm, self._gate, self._turn = library.norm, library.gate, library.turn
        self._gated_norm, self._group_norm = library.gated_norm, library.group_norm

    def rms_norm(self, x: Tensor, weight: Tensor | None = None, *, eps: float, offset: float = 0.0) -> Tensor:
        if x.dim() == 3 and x.stride(2) == 1 and x.stride(1) == x.shape[2]:  # heads cut out of a wider row
            outer, inner, width = x.shape
            stride = x.stride(0)
        else:
            x = x.contiguous()
            inner, width = 1, x.shape[-1]
            outer, stride = x.numel() // width, width
        out = torch.empty(x.shape, dtype=x.dtype)
        self._norm(
            self._context, TYPES[x.dtype], x.data_ptr(), outer, inner, width, stride, None,
            None if weight is None else _fit(weight, x).data_ptr(), eps, offset, out.data_ptr(), None,
        )  # fmt: skip
        return out

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, offset: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        x, residual = x.contiguous(), residual.contiguous()
        if residual.shape != x.shape or residual.dtype != x.dtype:
            raise ValueError(f"add_rms_norm: a residual of {residual.dtype} {list(residual.shape)} does not fit {x.dtype}")
        out, total, width = torch.empty_like(x), torch.empty_like(x), x.shape[-1]
        self._norm(
            self._context, TYPES[x.dtype], x.data_ptr(), x.numel() // width, 1, width, width, residual.data_ptr(),
            _fit(weight, x).data_ptr(), eps, offset, out.data_ptr(), total.data_ptr(),
        )  # fmt: skip
        return out, total

    def gated_rms_norm(self, x: Tensor, gate: Tensor, weight: Tensor, *, eps: float) -> Tensor:
        x, gate, width = x.contiguous(), gate.contiguous(), x.shape[-1]
        if gate.shape != x.shape or gate.dtype != x.dtype:
            raise ValueError(
                f"gated_rms_norm: a gate of {gate.dtype} {list(gate.shape)} does not fit {x.dtype} {list(x.shape)}"
            )
        out = torch.empty_like(x)
        self._gated_norm(
            self._context, TYPES[x.dtype], x.data_ptr(), gate.data_ptr(), x.numel() // width, width, _fit(weight, x).data_ptr(),
            eps, out.data_ptr(),
        )  # fmt: skip
        return out

    def gated_group_norm(
        self, x: Tensor, gate: Tensor, weight: Tensor, *, groups: int, eps: float, norm_first: bool = False
    ) -> Tensor:
        x, width = x.contiguous(), x.shape[-1]
        gate = gate if gate.dim() == 2 and gate.stride(1) == 1 else gate.contiguous()
        if gate.shape != x.shape or gate.dtype != x.dtype or width % groups:
            raise ValueError(
                f"gated_group_norm: a gate of {gate.dtype} {list(gate.shape)} does not fit {x.dtype} {list(x.shape)}"
            )
        out = torch.empty_like(x)
        self._group_norm(
            self._context, TYPES[x.dtype], x.data_ptr(), gate.data_ptr(), x.numel() // width, groups, width // groups,
            gate.stride(0) if gate.dim() == 2 else width, _fit(weight, x).data_ptr(), eps, int(norm_first), out.data_ptr(),
        )  # fmt: skip
        return out

    def act_and_mul(self, x: Tensor, *, act: str = "silu") -> Tensor:
        x, width = x.contiguous(), x.shape[-1] // 2
        out = torch.empty((*x.shape[:-1], width), dtype=x.dtype)
        code = _find_code(act)
        self._gate(self._context, TYPES[x.dtype], x.data_ptr(), out.numel() // width, width, *code, out.data_ptr())
        return out

    def activation(self, x: Tensor, *, act: str) -> Tensor:
        x, width = x.contiguous(), x.shape[-1]
        out = torch.empty(x.shape, dtype=x.dtype)
        code = GateCode(UNGATED[act])
        self._gate(self._context, TYPES[x.dtype], x.data_ptr(), x.numel() // width, width, *code, out.data_ptr())
        return out

    def rope(
        self, q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor, *, rotary_dim: int, interleaved: bool = False
    ) -> tuple[Tensor, Tensor]:
        q, k = (x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous() for x in (q, k))
        tokens, heads, width = q.shape
        q_out, k_out = torch.empty(q.shape, dtype=q.dtype), torch.empty(k.shape, dtype=q.dtype)
        if positions.shape != (tokens,) or cos_sin.shape[1] != rotary_dim or k.dtype != q.dtype or k.shape[0] != tokens:
            raise ValueError("rope: positions, table, q and k do not fit each other")
        self._turn(
            self._context, TYPES[q.dtype], q.data_ptr(), k.data_ptr(), tokens, heads, k.shape[1], width, q.stride(0),
            k.stride(0), positions.data_ptr(), cos_sin.data_ptr(), rotary_dim, int(interleaved), q_out.data_ptr(),
            k_out.data_ptr(),
        )  # fmt: skip
        return q_out, k_out


def _supports_ungated(spec: Mapping[str, Any]) -> str | None:
    return _supports_dtype(spec) if spec["act"] in UNGATED else f"runs {' and '.join(UNGATED)}, not {spec['act']}"


def _fit(weight: Tensor, x: Tensor) -> Tensor:
    if weight.dtype != x.dtype or weight.shape != x.shape[-1:]:
        raise ValueError(f"rms_norm: a weight of {weight.dtype} {list(weight.shape)} does not fit {x.dtype} {list(x.shape)}")
    return weight


def kernels(library: NativeLibrary) -> tuple[Kernel, ...]:
    ops, name = NativeRowOps(library), f"native-{library.level}"
    return (
        Kernel("rms_norm", name, ops.rms_norm, _supports_dtype, batch_invariant=True),
        Kernel("add_rms_norm", name, ops.add_rms_norm, _supports_dtype, batch_invariant=True),
        Kernel("gated_rms_norm", name, ops.gated_rms_norm, _supports_dtype, batch_invariant=True),
        Kernel("gated_group_norm", name, ops.gated_group_norm, _supports_dtype, batch_invariant=True),
        Kernel("act_and_mul", name, ops.act_and_mul, _gates, batch_invariant=True),
        Kernel("activation", name, ops.activation, _supports_ungated, batch_invariant=True),
        Kernel("rope", name, ops.rope, _supports_dtype, batch_invariant=True),
    )
