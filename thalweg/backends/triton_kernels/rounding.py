"""Rows of activations as codes of 8 bits with a scale each, the inputs of products with such weights. They are rounded in a
separate launch, or by the norm or gate that makes them. The codes are the same: a norm or gate rounds to the model's dtype
first.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from thalweg.backends.triton_kernels import codes
from thalweg.backends.triton_kernels.dependent import declare_dependence, wait_for_launches
from thalweg.backends.triton_kernels.elementwise import WIDEST, apply_gate, fits_gate, normalize, split_activation
from thalweg.backends.triton_kernels.tiles import TileSizes

FEW_ROWS, PARTS = 16, 8
"""Rows of which each is rounded by PARTS programs, where a block holds it: fewer would leave most of a device idle."""


@triton.jit
def _code(x, scale, INTEGER: tl.constexpr, NATIVE: tl.constexpr):
    """Numbers in float32 as codes of this scale, as `hal.ops.quantise.quantise_rows` rounds them."""
    code = tl.div_rn(x, scale)
    if INTEGER:
        result = tl.minimum(tl.maximum(codes.nearest(code), -127.0), 127.0).to(tl.int8)
    else:
        result = codes.to_e4m3(code, NATIVE)
    return result


@triton.jit
def _scale_of(most, INTEGER: tl.constexpr):
    """The scale of rows with this largest magnitude."""
    scale = tl.div_rn(most, 127.0 if INTEGER else 448.0)
    return tl.where(scale > 0, scale, 1.0)


@triton.jit
def _double_fnuz(scale, INTEGER: tl.constexpr, NATIVE: tl.constexpr):
    """A scale as memory holds it for this target."""
    return scale * 2.0 if not INTEGER and codes.is_fnuz(NATIVE) else scale


@triton.jit
def _load_row(x, i, width, kind, ACT: tl.constexpr, LIMIT: tl.constexpr, UP_LIMIT: tl.constexpr):
    """Elements i of a row of `width` in float32. ACT: the row is act(first half) * second half of 2 * width elements, rounded
    to `kind`."""
    row = tl.load(x + i, mask=i < width, other=0.0).to(tl.float32)
    if ACT != "":
        high = tl.load(x + width + i, mask=i < width, other=0.0).to(tl.float32)
        row = apply_gate(row, high, kind, ACT, LIMIT, UP_LIMIT).to(tl.float32)
    return row


@triton.jit
def _round(
    x, out, scales, width, x_row, INTEGER: tl.constexpr, NATIVE: tl.constexpr, ACT: tl.constexpr, LIMIT: tl.constexpr,
    UP_LIMIT: tl.constexpr, WHOLE: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One row of x, or of its gated halves (`_load_row`), to codes and the scale for their values as read. WHOLE: a block holds
    the row, which is then read once. PARTS: programs of a row. Each finds the scale, and makes its part of the codes."""
    wait_for_launches(DEPENDENT)
    r = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    kind = x.dtype.element_ty
    if WHOLE:
        row = _load_row(x + r * x_row, i, width, kind, ACT, LIMIT, UP_LIMIT)
        most = tl.max(tl.abs(row), 0)
    else:
        parts = tl.zeros([BLOCK], tl.float32)
        for start in range(0, width, BLOCK):
            parts = tl.maximum(parts, tl.abs(_load_row(x + r * x_row, start + i, width, kind, ACT, LIMIT, UP_LIMIT)))
        most = tl.max(parts, 0)
    scale = _scale_of(most, INTEGER)
    if tl.program_id(1) == 0:
        tl.store(scales + r, _double_fnuz(scale, INTEGER, NATIVE))
    if PARTS > 1:
        i = tl.program_id(1) * (BLOCK // PARTS) + tl.arange(0, BLOCK // PARTS)
        row = _load_row(x + r * x_row, i, width, kind, ACT, LIMIT, UP_LIMIT)
    if WHOLE:
        tl.store(out + r * width + i, _code(row, scale, INTEGER, NATIVE), mask=i < width)
    else:
        for start in range(0, width, BLOCK):
            part = _load_row(x + r * x_row, start + i, width, kind, ACT, LIMIT, UP_LIMIT)
            tl.store(out + r * width + start + i, _code(part, scale, INTEGER, NATIVE), mask=start + i < width)


@triton.jit(do_not_specialize=["rows"])
def _norm_round(
    x, residual, weight, out, scales, total, rows, x_row, r_row, width, eps, offset, ADD: tl.constexpr, OFFSET: tl.constexpr,
    INTEGER: tl.constexpr, NATIVE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """ROWS rows of rms_norm, or of add_rms_norm, as codes, with their scales."""
    wait_for_launches(DEPENDENT)
    r = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    c = tl.arange(0, BLOCK)
    ok = (r < rows)[:, None] & (c < width)[None, :]
    each: tl.constexpr = 128 // x.dtype.element_ty.primitive_bitwidth  # codes must not widen a thread's share of the sum
    put = tl.max_contiguous(r[:, None] * width + c[None, :], [1, each])
    wide = tl.load(x + r[:, None] * x_row + c[None, :], mask=ok, other=0.0).to(tl.float32)
    if ADD:
        wide += tl.load(residual + r[:, None] * r_row + c[None, :], mask=ok, other=0.0).to(tl.float32)
        wide = wide.to(total.dtype.element_ty)
        tl.store(total + put, wide, mask=ok)
        wide = wide.to(tl.float32)
    normed = normalize(wide, weight, c, width, eps, offset, x.dtype.element_ty, OFFSET).to(tl.float32)
    scale = _scale_of(tl.max(tl.abs(normed), 1), INTEGER)
    tl.store(scales + r, _double_fnuz(scale, INTEGER, NATIVE), mask=r < rows)
    result = _code(normed, tl.broadcast_to(scale[:, None], [ROWS, BLOCK]), INTEGER, NATIVE)
    tl.store(out + put, result, mask=ok)


def _allocate(x: Tensor, rows: int, width: int, act: str) -> tuple[Tensor, Tensor]:
    """(codes [rows, width], int8 or the uint8 of float8_e4m3fn, scales float32 [rows]), not filled."""
    codes = torch.empty((rows, width), dtype=torch.int8 if act == "int8" else torch.uint8, device=x.device)
    return codes, torch.empty(rows, dtype=torch.float32, device=x.device)


def _flat(x: Tensor) -> Tensor:
    """[rows, width], the elements of a row next to each other."""
    flat = x.reshape(-1, x.shape[-1])
    return flat if flat.stride(1) == 1 else flat.contiguous()


def round_rows(tiles: TileSizes, x: Tensor, act: str, gate: str = "") -> tuple[Tensor, Tensor]:
    """x [rows, width] -> (codes [rows, width], int8 or the uint8 of float8_e4m3fn, scale float32 [rows]). gate: codes are those
    of act_and_mul of x [rows, 2 * width]."""
    rows, width = x.shape[0], x.shape[1] // 2 if gate else x.shape[1]
    out, scales = _allocate(x, rows, width, act)
    if rows == 0:
        return out, scales
    block = min(triton.next_power_of_2(width), 2 * tiles.rows.warps * tiles.rows.per_warp)
    warps = max(1, min(tiles.rows.warps, block // tiles.rows.per_warp))
    parts = PARTS if rows <= FEW_ROWS and block >= width and block >= PARTS * warps * 64 else 1
    _round[(rows, parts)](
        x, out, scales, width, x.stride(0), INTEGER=act == "int8", NATIVE=tiles.float8,
        **split_activation(gate), WHOLE=block >= width, BLOCK=block, PARTS=parts, num_warps=warps, **declare_dependence(tiles),
    )  # fmt: skip
    return out, scales


def gate_and_round(tiles: TileSizes, x: Tensor, gate: str, act: str) -> tuple[Tensor, Tensor]:
    """`round_rows` of act_and_mul of x [..., 2 * width]: (codes [rows, width], scales [rows])."""
    return round_rows(tiles, _flat(x), act, gate)


def norm_and_round(
    tiles: TileSizes, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, offset: float, act: str
) -> tuple[Tensor, Tensor, Tensor]:
    """x, residual [..., width] -> (codes [rows, width] and scales [rows] of the norm of x + residual, that sum). residual None:
    x is the sum."""
    flat, width = _flat(x), x.shape[-1]
    rows = flat.shape[0]
    out, scales = _allocate(x, rows, width, act)
    if residual is None:
        other, total = flat, x
    else:
        other, total = _flat(residual), torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if rows == 0:
        return out, scales, total
    per, block, warps = tiles.rows.split(width)
    _norm_round[(triton.cdiv(rows, per),)](
        flat, other, weight, out, scales, total, rows, flat.stride(0), other.stride(0), width, eps, offset,
        ADD=residual is not None, OFFSET=offset != 0.0, INTEGER=act == "int8", NATIVE=tiles.float8, ROWS=per, BLOCK=block,
        num_warps=warps, **declare_dependence(tiles),
    )  # fmt: skip
    return out, scales, total


Refuse = Callable[[Mapping[str, Any]], str | None]


def refuse_joined(op: str, linear: Refuse) -> Refuse:
    """What refuses an op that ends in a linear layer, whose kernel refuses by `linear`."""
    more = {"rms_norm_linear": _refuse_norm, "act_and_mul_linear": _refuse_gate}.get(op)
    return linear if more is None else functools.partial(_refuse_either, linear, more)


def _refuse_either(first: Refuse, second: Refuse, spec: Mapping[str, Any]) -> str | None:
    return first(spec) or second(spec)


def _refuse_norm(spec: Mapping[str, Any]) -> str | None:
    width = spec["in_features"]
    return f"rows of {width} are longer than {WIDEST}" if width > WIDEST else None


def _refuse_gate(spec: Mapping[str, Any]) -> str | None:
    return fits_gate({"dtype": spec["dtype"], "act": spec["gate"]})
