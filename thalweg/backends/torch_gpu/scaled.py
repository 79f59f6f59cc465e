"""Linear layers with rounded inputs, by the matrix libraries that torch calls. 8-bit floats go through
`torch._scaled_mm`, which multiplies scales in as it writes. Integers go through `torch._int_mm`, which leaves scales
to us.

Few rows are bound by reading the weight once. Triton's product rounds, multiplies and scales in one or two launches,
and is then better where it is here. Weights are packed for that product. With Triton's rounding or without, codes are
those of `hal.ops.quantise.quantise_rows`. On the architectures of `SHOWN` both products of 8-bit floats give a row the same
bits, in any number of rows.

In fnuz (float8_e4m3fnuz, one vendor's 8-bit float) the other's bit patterns mean half as much, and -0 is NaN. Codes
keep their bits except -0 and NaN, and each scale is doubled, as in Triton's product. That has been run by torch on a processor
only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from thalweg.backends.torch_gpu.arch import FNUZ, arch_of
from thalweg.hal.op import Kernel, Pack
from thalweg.hal.ops.quantise import quantise_rows
from thalweg.hal.weights import QTensor

E4M3 = "float8_e4m3fn"
FEW, LEAST_INT = 64, 32
"""Rows up to which Triton's product runs, and the fewest that `_int_mm` is given, which needs more than 16."""
SHOWN: Mapping[str, str] = {"sm_90": "nvidia-h200-2026-11-26-72915bbda154"}
"""As `thalweg.backends.torch_gpu.linear.SHOWN`, of 8-bit floats."""
FLOAT_STEP, INT_STEP = 16, 8
"""Divisors of both sizes of a weight, as the matrix libraries need them."""
INT_FAMILIES = ("CDNA2", "CDNA3", "CDNA4")
"""AMD's with a library for integers that torch calls."""

Run = Callable[..., Tensor]
Refuse = Callable[[Mapping[str, Any]], str | None]
Round = Callable[[Tensor, str], tuple[Tensor, Tensor]]
"""rows [n, in] of the model's dtype, act -> (codes [n, in], one byte each, scale float32 [n]), both as the target holds them"""


@dataclass(frozen=True, slots=True)
class Helpers:
    """Triton's share of the work. few: (act) -> its product of codes of 8 bits (`quantised.multiply`), or None where it is not
    installed. norm, gate, refuse: `rounding.norm_and_round`, `gate_and_round` and `refuse_joined`, or None."""

    round: Round
    few: Callable[[str], Run | None]
    norm: Callable[..., tuple[Tensor, Tensor, Tensor]] | None = None
    gate: Callable[..., tuple[Tensor, Tensor]] | None = None
    refuse: Callable[[str, Refuse], Refuse] | None = None


def in_torch(rows: Tensor, act: str) -> tuple[Tensor, Tensor]:
    codes, scale = quantise_rows(rows, act)
    return codes, scale[:, 0]


def in_fnuz(rows: Tensor, act: str) -> tuple[Tensor, Tensor]:
    codes, scale = in_torch(rows, act)
    return _as_fnuz(codes.view(torch.uint8)), scale * 2


ALONE = Helpers(in_torch, lambda act: None)


def helpers(arch: str) -> Helpers:
    try:
        from thalweg.backends.triton_kernels import quantised, rounding
        from thalweg.backends.triton_kernels.tiles import tiles

        t = tiles(arch)
    except (ImportError, ValueError):
        return ALONE
    kinds = {E4M3: "float8", "int8": "int8"}
    part = functools.partial
    norm, gate = part(rounding.norm_and_round, t), part(rounding.gate_and_round, t)
    return Helpers(
        part(rounding.round_rows, t),
        lambda act: part(quantised.multiply, t, kinds[act], True),
        norm,
        gate,
        rounding.refuse_joined,
    )


def _float8(
    h: Helpers, kind: torch.dtype, x: Tensor, weight: Mapping[str, Tensor], bias: Tensor | None = None, *, act: str = "",
    group: int = 0,
) -> Tensor:  # fmt: skip
    """kind: the target's 8-bit float."""
    codes, scale = h.round(x.reshape(-1, x.shape[-1]), act)
    out = _multiply_floats(h, kind, codes, scale, weight, bias, x.dtype, act, group)
    return out.view(*x.shape[:-1], out.shape[-1])


def _multiply_floats(
    h: Helpers, kind: torch.dtype, codes: Tensor, scale: Tensor, weight: Mapping[str, Tensor], bias: Tensor | None,
    dtype: torch.dtype, act: str, group: int,
) -> Tensor:  # fmt: skip
    """Of rows as codes. The library adds a bias after another rounding than Triton's product, so it has all rows of layers with
    one."""
    few = h.few(act)
    if few is not None and bias is None and codes.shape[0] <= FEW:
        return few(codes, scale, weight, bias, dtype, act=act, group=group)
    scales = weight["scales"].expand(1, weight["codes"].shape[0])
    return torch._scaled_mm(
        codes.view(kind), weight["codes"].view(kind).t(), scale[:, None], scales.contiguous(), bias=bias, out_dtype=dtype
    )


def _float8_behind_norm(
    h: Helpers, kind: torch.dtype, x: Tensor, residual: Tensor | None, norm: Tensor, weight: Mapping[str, Tensor],
    bias: Tensor | None = None, *, eps: float, offset: float = 0.0, act: str, group: int = 0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """rms_norm_linear."""
    assert h.norm is not None
    codes, scale, total = h.norm(x, residual, norm, eps, offset, act)
    out = _multiply_floats(h, kind, codes, scale, weight, bias, x.dtype, act, group)
    return out.view(*x.shape[:-1], out.shape[-1]), total


def _float8_behind_gate(
    h: Helpers, kind: torch.dtype, x: Tensor, weight: Mapping[str, Tensor], bias: Tensor | None = None, *, gate: str, act: str,
    group: int = 0,
) -> Tensor:  # fmt: skip
    """act_and_mul_linear."""
    assert h.gate is not None
    codes, scale = h.gate(x, gate, act)
    out = _multiply_floats(h, kind, codes, scale, weight, bias, x.dtype, act, group)
    return out.view(*x.shape[:-1], out.shape[-1])


def _int8(
    h: Helpers, x: Tensor, weight: Mapping[str, Tensor], bias: Tensor | None = None, *, act: str = "", group: int = 0
) -> Tensor:
    rows, few = x.reshape(-1, x.shape[-1]), h.few(act)
    n = rows.shape[0]
    codes, scale = h.round(rows, act)
    if few is not None and n <= FEW:
        out: Tensor = few(codes, scale, weight, bias, x.dtype, act=act, group=group)
        return out.view(*x.shape[:-1], out.shape[-1])
    if n < LEAST_INT:
        codes = F.pad(codes, (0, 0, 0, LEAST_INT - n))
    sums = torch._int_mm(codes, weight["codes"].t())[:n]
    out = sums.to(torch.float32) * weight["scales"] * scale[:, None]
    out = out if bias is None else out + bias
    return out.to(x.dtype).view(*x.shape[:-1], out.shape[-1])


def _as_fnuz(codes: Tensor) -> Tensor:
    """uint8 codes of float8_e4m3fn -> codes of half the value: 0 for -0, 0x80 for NaN."""
    codes = codes.masked_fill(codes == 0x80, 0)
    return codes.masked_fill((codes & 0x7F) == 0x7F, 0x80)


def pack(fnuz: bool, w: QTensor) -> dict[str, Tensor]:
    """{"codes": int8 or uint8 [out, in], "scales": float32 [1, out], or [1, 1] where the whole weight has one}, the form of
    Triton's product."""
    codes, kind = w.data["codes"].contiguous(), "int" if w.format.kind == "int" else "float"
    want = torch.int8 if kind == "int" else torch.float8_e4m3fn
    if codes.dtype != want:
        raise ValueError(f"weight {w.format} of shape {w.shape}: runs codes of {want}, not {codes.dtype}")
    scales = w.data["scales"].to(torch.float32).t().contiguous()
    if kind == "float":
        codes = codes.view(torch.uint8)
        codes, scales = (_as_fnuz(codes), scales * 2) if fnuz else (codes, scales)
    return {"codes": codes, "scales": scales}


def _refusal(
    kind: str, act: str, step: int, dtypes: tuple[str, ...], unable: str | None, spec: Mapping[str, Any]
) -> str | None:
    """unable: why this target runs nothing here, or None."""
    w = spec["weight"]
    if (w.kind, w.bits, w.act) != (kind, 8, act) or w.group > 0 or not w.symmetric:
        return f"runs {kind}8 weights with {act} inputs and a scale per row or tensor, not {w}"
    if unable is not None:
        return unable
    if spec["dtype"] not in dtypes:
        return f"gives {', '.join(dtypes)}, not {spec['dtype']}"
    if spec["in_features"] % step or spec["out_features"] % step:
        return f"runs sizes that {step} divides, not {spec['in_features']} x {spec['out_features']}"
    return None


def kernels(arch: str, h: Helpers) -> tuple[Kernel, ...]:
    """Of NVIDIA's and AMD's targets. Those that cannot say so in the plan."""
    known, nvidia = arch_of(arch), arch.startswith("sm_")
    if not nvidia and not arch.startswith("gfx"):
        return ()
    no_floats = None if known.fp8 else f"{arch} multiplies no 8-bit floats"
    no_ints = None if nvidia or known.family in INT_FAMILIES else f"{arch} has no library of integer products"
    part, native = functools.partial, known.fp8 or E4M3
    floats = replace(h, round=in_fnuz) if native == FNUZ and h.round is in_torch else h
    taken = Pack(part(pack, native == FNUZ))
    fits = part(_refusal, "float", E4M3, FLOAT_STEP, ("bfloat16",), no_floats)

    def float8(op: str, run: Callable[..., Any], supports: Refuse) -> Kernel:
        result = part(run, floats, getattr(torch, native))
        return Kernel(op, "torch-float8", result, supports, pack=taken, batch_invariant=arch in SHOWN)

    joined: tuple[Kernel, ...] = ()
    if h.refuse is not None:
        each: tuple[tuple[str, Callable[..., Any]], ...] = (
            ("rms_norm_linear", _float8_behind_norm),
            ("act_and_mul_linear", _float8_behind_gate),
        )
        joined = tuple(float8(op, run, h.refuse(op, fits)) for op, run in each)
    return (
        float8("linear", _float8, fits),
        Kernel(
            "linear", "torch-int8", part(_int8, h),
            supports=part(_refusal, "int", "int8", INT_STEP, ("bfloat16", "float16", "float32"), no_ints),
            pack=Pack(part(pack, False)),
        ),
        *joined,
    )  # fmt: skip
